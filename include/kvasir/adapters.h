// Adapters: low-rank changes of a model's weights (LoRA), which requests choose.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvasir {

// The largest scale of an adapter, to either side of 0.
inline constexpr double kMaxAdapterScale = 100;

// Where an adapter is, and what it is called.
struct AdapterSource {
  std::string path;                      // a PEFT folder or a GGUF file
  std::optional<std::string> name = {};  // a model id, which requests may give; absent: no such id
  double scale = 1;  // in requests that say nothing of adapters; 0: it is not applied there
  // Instead of `path`: an adapter of rank 8 with random numbers, for selftest and tests.
  std::optional<uint64_t> seed = {};
};

struct AdapterOptions {
  std::vector<AdapterSource> load;       // at start, in this order
  std::optional<uint64_t> memory_bytes;  // limit of all that are loaded; absent: what `load` takes
  uint32_t max_rank = 64;                // of an adapter
  uint32_t max_loaded = 8;               // adapters at once
  bool loads_later = false;              // Engine::LoadAdapter may be called

  bool any() const { return !load.empty() || loads_later; }
};

// An adapter that is loaded.
struct AdapterCard {
  uint64_t id = 0;  // counted from 0 in the order of loading; never used again
  std::string name, path;
  bool is_model = false;  // `name` is a model id
  double scale = 0;       // AdapterSource::scale, or what was set later
  // SHA-256 in hex digits over targets, numbers and the file's scales: the same numbers from PEFT
  // and GGUF files have the same.
  std::string digest;
  uint32_t rank = 0;                  // the largest
  uint32_t waiting = 0, running = 0;  // requests with it
  uint64_t bytes = 0;
};

// An adapter that a request chooses.
struct AdapterChoice {
  uint64_t id = 0;
  double scale = 1;
  bool operator==(const AdapterChoice&) const = default;
};

// An adapter that a request was computed with. `digest`: AdapterCard's.
struct UsedAdapter {
  std::string name;
  double scale = 1;
  std::string digest;
  bool operator==(const UsedAdapter&) const = default;
};

}  // namespace kvasir
