// Sample: what a load run saw of one request.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir::load {

// Times are MonotonicNs; 0: did not happen.
struct Sample {
  uint32_t tenant = 0;
  uint64_t due_ns = 0;  // when it should have gone out: latency counts from here
  uint64_t first_ns = 0, last_ns = 0, end_ns = 0;
  std::vector<double> gaps_ms;  // between two tokens
  uint32_t status = 0;          // of HTTP; 0: no answer came
  bool done = false;            // the whole answer came
  uint64_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0;

  double ttft_ms() const { return static_cast<double>(first_ns - due_ns) * 1e-6; }
  double whole_ms() const { return static_cast<double>(end_ns - due_ns) * 1e-6; }
  // Returns the mean time per token after the first one.
  double itl_ms() const {
    if (gaps_ms.empty()) return 0;
    return static_cast<double>(last_ns - first_ns) * 1e-6 / static_cast<double>(gaps_ms.size());
  }
};

// Adds one event of an answer's stream, as OpenAI's API, kvasir and llama-server send it.
void AddEvent(std::string_view data, uint64_t now_ns, Sample& sample);

// Adds an answer that was not streamed: all its tokens came now.
void AddWhole(std::string_view body, uint64_t now_ns, Sample& sample);

}  // namespace kvasir::load
