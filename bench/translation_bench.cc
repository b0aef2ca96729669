// Translations through Engine::SubmitAll, for peers/ctranslate2_bench.py.
//
//   translation_bench MODEL [--threads 2] [--weights i8] [--parallel 320] [--kv-memory BYTES]
//
// For each line of standard input, {"sources": [[ids], ...], "prompt": [start, language], "beams":
// 5, "tokens": 31}, prints {"seconds", "tokens": of the best hypotheses, "encoder_passes"}: of
// answers of exactly so many tokens to all sources at once.
#include <fmt/format.h>

#include <condition_variable>
#include <cstdio>
#include <iostream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "kvasir/engine.h"

namespace kvasir {
namespace {

struct Answers {
  std::mutex mutex;
  std::condition_variable all_ended;
  uint64_t num_tokens = 0;
  size_t num_ended = 0;
  std::optional<Error> error;
};

std::vector<GenerateRequest> RequestsOf(const nlohmann::json& asked) {
  std::vector<GenerateRequest> requests;
  for (const auto& source : asked.at("sources")) {
    GenerateRequest& request = requests.emplace_back();
    request.source = source.get<std::vector<TokenId>>();
    request.prompt = asked.at("prompt").get<std::vector<TokenId>>();
    request.max_tokens = request.min_tokens = asked.at("tokens").get<uint32_t>();
    request.sampling.temperature = 0;
    if (const auto beams = asked.at("beams").get<uint32_t>(); beams > 1) {
      request.beams.emplace().beams = beams;
    } else {
      request.min_tokens = 0;
      request.ignore_eos = true;
    }
  }
  return requests;
}

Status Translate(Engine& engine, const nlohmann::json& asked) {
  std::vector<GenerateRequest> requests = RequestsOf(asked);
  const size_t num = requests.size();
  const uint64_t passes = engine.Stats().encoder_passes;
  Answers answers;
  const uint64_t begin_ns = MonotonicNs();
  const auto ids = engine.SubmitAll(std::move(requests), [&](size_t, const Event& event) {
    const std::lock_guard lock(answers.mutex);
    if (event.choice == 0) answers.num_tokens += event.tokens.size();
    if (!event.last) return;
    if (event.error) answers.error = event.error;
    if (++answers.num_ended == num) answers.all_ended.notify_all();
  });
  if (!ids) return tl::unexpected(ids.error());
  std::unique_lock lock(answers.mutex);
  answers.all_ended.wait(lock, [&] { return answers.num_ended == num; });
  if (answers.error) return tl::unexpected(*answers.error);
  const double seconds = static_cast<double>(MonotonicNs() - begin_ns) * 1e-9;
  fmt::print("{{\"seconds\": {:.6f}, \"tokens\": {}, \"encoder_passes\": {}}}\n", seconds,
             answers.num_tokens, engine.Stats().encoder_passes - passes);
  std::fflush(stdout);
  return {};
}

Status Run(const EngineOptions& options) {
  auto engine = Engine::Load(options);
  if (!engine) return tl::unexpected(engine.error());
  fmt::print("{{\"target\": \"{}\", \"plan\": {{\"weights\": {}, \"total\": {}}}}}\n",
             (*engine)->target(), (*engine)->plan().weights_bytes, (*engine)->plan().total_bytes);
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
    const Status status = Translate(**engine, nlohmann::json::parse(line));
    if (!status) return status;
  }
  return {};
}

}  // namespace
}  // namespace kvasir

int main(int argc, char** argv) {
  kvasir::EngineOptions options;
  options.model = argc > 1 ? argv[1] : "";
  options.threads = 2;
  options.parallel = 320;
  for (int i = 2; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--threads") options.threads = static_cast<uint32_t>(std::stoul(value));
    if (name == "--weights") options.weights = value;
    if (name == "--parallel") options.parallel = static_cast<uint32_t>(std::stoul(value));
    if (name == "--kv-memory") options.kv_memory_bytes = std::stoull(value);
  }
  const kvasir::Status status = kvasir::Run(options);
  if (!status) fmt::print(stderr, "translation_bench: {}\n", status.error().text());
  return status ? 0 : 2;
}
