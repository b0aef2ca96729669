// Eviction policies on a published trace of conversations: the hits of each, beside Belady's
// optimum. One JSON line a policy and size; exit status 1 when a figure is wrong: LRU is not
// within 1% of the trace's golden figures, a policy has more hits than the optimum, or the default
// is not the winner at 10,000 blocks.
//
// usage: eviction_bench [folder of conversation_trace.jsonl and golden.json]
#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "source_paths.h"
#include "testing/belady.h"
#include "testing/prefix_replay.h"
#include "testing/trace.h"

namespace kvasir {
namespace {

constexpr uint32_t kSizes[] = {1'000, 10'000, 50'000};  // blocks of 512 tokens
constexpr uint32_t kDeciding = 10'000;

using Prompts = std::vector<std::vector<uint32_t>>;

// Prints the line; returns the hits, or nothing where they cannot be right.
std::optional<uint64_t> Measure(const Prompts& prompts, uint32_t num_blocks, uint64_t most,
                                const EvictionChoice& choice, const nlohmann::json& golden) {
  const uint64_t begin = MonotonicNs();
  const auto replay = ReplayPrefixes(prompts, num_blocks, choice);
  const double seconds = static_cast<double>(MonotonicNs() - begin) * 1e-9;
  if (!replay) {
    fmt::print(stderr, "eviction_bench: {}\n", replay.error().message);
    return std::nullopt;
  }
  bool right = replay->hits <= most;
  std::string beside;
  if (choice.name == std::string_view("lru")) {
    const std::string at = fmt::format("/lru/{}/prefix_reverse_touch/hits", num_blocks);
    const double expected = golden.value(nlohmann::json::json_pointer(at), 0.0);
    right &= std::abs(static_cast<double>(replay->hits) - expected) <= 0.01 * expected;
    beside = fmt::format("\"golden_hits\": {:.0f}, ", expected);
  }
  fmt::print(
      "{{\"bench\": \"eviction\", \"blocks\": {}, \"policy\": \"{}\", \"hits\": {}, "
      "\"hit_ratio\": {:.4f}, \"optimum_hits\": {}, \"share_of_optimum\": {:.4f}, {}"
      "\"evictions\": {}, \"replay_s\": {:.2f}, \"right\": {}}}\n",
      num_blocks, choice.name, replay->hits,
      static_cast<double>(replay->hits) / static_cast<double>(replay->blocks), most,
      static_cast<double>(replay->hits) / static_cast<double>(most), beside, replay->evictions,
      seconds, right);
  return right ? std::optional(replay->hits) : std::nullopt;
}

int Run(const std::filesystem::path& folder) {
  const auto trace = ReadTrace(folder / "conversation_trace.jsonl");
  std::ifstream golden_file(folder / "golden.json");
  const auto golden = nlohmann::json::parse(golden_file, nullptr, /*allow_exceptions=*/false);
  if (!trace || !golden.contains("conversation_trace.jsonl")) {
    fmt::print(stderr, "eviction_bench: skipped: {}\n",
               !trace ? trace.error().message : (folder / "golden.json").string() + " is missing");
    return 0;
  }
  Prompts prompts;
  for (const TraceRequest& request : *trace) prompts.push_back(request.block_ids);
  bool right = true;
  for (const uint32_t num_blocks : kSizes) {
    const uint64_t most = BeladyHits(prompts, num_blocks);
    const EvictionChoice* winner = nullptr;
    uint64_t best = 0;
    for (const EvictionChoice& choice : EvictionChoices()) {
      const auto hits =
          Measure(prompts, num_blocks, most, choice, golden["conversation_trace.jsonl"]);
      right &= hits.has_value();
      if (!hits || (winner != nullptr && *hits <= best)) continue;
      winner = &choice;
      best = *hits;
    }
    if (num_blocks == kDeciding && winner != &DefaultEvictionChoice()) {
      fmt::print(stderr, "eviction_bench: the default is {}, the winner another\n",
                 DefaultEvictionChoice().name);
      right = false;
    }
  }
  return right ? 0 : 1;
}

}  // namespace
}  // namespace kvasir

int main(int argc, char** argv) {
  return kvasir::Run(argc > 1 ? argv[1] : KVASIR_SHARED_DIR "/data/mooncake-conversation");
}
