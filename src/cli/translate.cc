// kvasir translate: what an encoder-decoder model answers to a source.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/result.h"
#include "cli/command.h"
#include "cli/engine_flags.h"
#include "cli/generation.h"
#include "cli/interrupt.h"
#include "observe/receipt_json.h"

namespace kvasir::cli {
namespace {

struct TranslateOptions {
  std::vector<TokenId> source;
  TokenId target = 0;
  std::optional<uint32_t> max_tokens;  // the target language counts
};

Result<TranslateOptions> ReadTranslateOptions(const Args& args) {
  TranslateOptions options;
  for (const char* flag : {"source-ids", "target-id"}) {
    if (args.Has(flag)) continue;
    return Fail(Code::kInvalidArgument,
                "--{} is missing; give the source as --source-ids 1,2,3 and the target language as "
                "--target-id N",
                flag);
  }
  KV_ASSIGN(options.source, ParseIds(*args.Text("source-ids"), "source-ids"));
  KV_ASSIGN(const std::vector<TokenId> target, ParseIds(*args.Text("target-id"), "target-id"));
  if (target.size() != 1) {
    return Fail(Code::kInvalidArgument, "--target-id: {} ids; give one", target.size());
  }
  options.target = target[0];
  if (args.Has("max-tokens")) {
    KV_ASSIGN(const uint64_t most, args.Uint("max-tokens", 1, uint64_t{1} << 30, 1));
    options.max_tokens = static_cast<uint32_t>(most);
  }
  return options;
}

Result<int> RunTranslate(const Args& args) {
  KV_ASSIGN(const EngineOptions engine_options, EngineOptionsOf(args));
  KV_ASSIGN(const TranslateOptions options, ReadTranslateOptions(args));
  ExitOnInterrupt();
  KV_ASSIGN(const std::unique_ptr<Engine> engine, LoadEngine(engine_options));
  const std::optional<TokenId> start = engine->card().decoder_start;
  if (!start) {
    return Fail(Code::kInvalidArgument,
                "--model: {} has no encoder, so it does not translate; use 'kvasir run'",
                engine->card().id);
  }
  GenerateRequest request;
  request.source = options.source;
  request.prompt = {*start, options.target};
  request.sampling.temperature = 0;
  if (options.max_tokens) request.max_tokens = *options.max_tokens - 1;
  KV_ASSIGN(const Outcome outcome, RunRequest(*engine, request, [](std::string_view) {}));
  std::vector<TokenId> tokens = request.prompt;
  tokens.insert(tokens.end(), outcome.tokens.begin(), outcome.tokens.end());
  if (args.Has("json")) {
    const nlohmann::json object = {{"tokens", tokens},
                                   {"finish_reason", ToString(outcome.finish_reason)},
                                   {"receipt", ReceiptJson(outcome.receipt)}};
    fmt::print("{}\n", object.dump());
  } else {
    fmt::print("{}\n", fmt::join(tokens, ","));
  }
  return outcome.finish_reason == FinishReason::kCancelled ? kExitInterrupted : kExitDone;
}

}  // namespace

Command TranslateCommand() {
  return {
      "translate", "the greedy answer of an encoder-decoder model to a source",
      "translate --model m2m100 --source-ids 9,8,7,2 --target-id 5",
      Join({{{"source-ids",
              "1,2,3",
              "token ids that the encoder reads, as given",
              FlagKind::kValue,
              {},
              "source"},
             {"target-id", "N", "token id of the target language, which the answer begins with"},
             {"max-tokens", "N",
              "at most so many tokens, the language counts (default: the context)"},
             {"json", "", "one object: tokens (start, language and end included), receipt",
              FlagKind::kSwitch}},
            LoadFlags(),
            CacheFlags()}),
      RunTranslate};
}

}  // namespace kvasir::cli
