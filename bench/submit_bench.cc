// submit_bench: 8 streams through Engine::Submit, for what HTTP costs beside it. Prints one JSON
// line: seconds from their submission to the end of the last one, and tokens a second of all of
// them.
//
// usage: submit_bench [shape] [answer tokens] [threads]
#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "kvasir/engine.h"

namespace kvasir {
namespace {

constexpr size_t kStreams = 8;
constexpr uint32_t kPromptTokens = 256;

struct Streams {
  std::mutex mutex;
  std::condition_variable all_ended;
  uint64_t num_tokens = 0;
  size_t num_ended = 0;
  std::optional<Error> error;
};

GenerateRequest RequestOf(size_t stream, uint32_t answer_tokens) {
  GenerateRequest request;
  for (uint32_t i = 0; i < kPromptTokens; ++i) {
    request.prompt.push_back(static_cast<TokenId>(5 + (i * 7 + stream * 31) % 200));
  }
  request.max_tokens = answer_tokens;
  request.ignore_eos = true;
  request.sampling.temperature = 0;
  return request;
}

int Run(std::span<char* const> args) {
  EngineOptions options;
  options.shape = args.size() > 1 ? args[1] : "llama-100m";
  const uint32_t answer_tokens = args.size() > 2 ? std::stoul(args[2]) : 256;
  if (args.size() > 3) options.threads = std::stoul(args[3]);
  options.speculate = Speculate::kOff;  // it measures steps
  auto engine = Engine::Load(options);
  if (!engine) {
    fmt::print(stderr, "submit_bench: {}\n", engine.error().text());
    return 2;
  }
  std::vector<GenerateRequest> requests;
  for (size_t i = 0; i < kStreams; ++i) requests.push_back(RequestOf(i, answer_tokens));
  Streams streams;
  const uint64_t begin_ns = MonotonicNs();
  const auto ids = (*engine)->SubmitAll(std::move(requests), [&](size_t, const Event& event) {
    const std::lock_guard lock(streams.mutex);
    streams.num_tokens += event.tokens.size();
    if (!event.last) return;
    if (event.error) streams.error = event.error;
    if (++streams.num_ended == kStreams) streams.all_ended.notify_all();
  });
  if (ids) {
    std::unique_lock lock(streams.mutex);
    streams.all_ended.wait(lock, [&] { return streams.num_ended == kStreams; });
  }
  if (!ids || streams.error) {
    fmt::print(stderr, "submit_bench: {}\n", (ids ? *streams.error : ids.error()).text());
    return 1;
  }
  const double seconds = static_cast<double>(MonotonicNs() - begin_ns) * 1e-9;
  fmt::print("{{\"streams\": {}, \"seconds\": {:.3f}, \"tokens_per_s\": {:.2f}}}\n", kStreams,
             seconds, static_cast<double>(streams.num_tokens) / seconds);
  return 0;
}

}  // namespace
}  // namespace kvasir

int main(int argc, char** argv) { return kvasir::Run({argv, static_cast<size_t>(argc)}); }
