// kvasir logits: raw logits of a prompt.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "base/result.h"
#include "base/sizes.h"
#include "cli/adapter_flags.h"
#include "cli/command.h"
#include "cli/engine_flags.h"
#include "cli/generation.h"
#include "cli/interrupt.h"
#include "cli/npy.h"
#include "cli/sampling_flags.h"
#include "cli/span_flags.h"
#include "text/tokenizer.h"

namespace kvasir::cli {
namespace {

struct LogitsOptions {
  std::vector<TokenId> source, ids;
  bool all_positions = false;
  bool warm = false;
  std::optional<uint32_t> chunk_tokens;
  std::optional<RetentionChoice> retention;
  std::optional<PromptSpans> spans;
  std::optional<std::string> out;
};

Result<LogitsOptions> ReadLogitsOptions(const Args& args) {
  LogitsOptions options;
  if (!args.Has("ids")) {
    return Fail(Code::kInvalidArgument, "--ids is missing; give token ids such as --ids 1,2,3");
  }
  KV_ASSIGN(options.ids, ParseIds(*args.Text("ids")));
  if (args.Has("source-ids")) {
    KV_ASSIGN(options.source, ParseIds(*args.Text("source-ids"), "source-ids"));
  }
  static constexpr std::string_view kPositions[] = {"last", "all"};
  KV_ASSIGN(const std::string positions, args.OneOf("positions", kPositions, "last"));
  options.all_positions = positions == "all";
  options.warm = args.Has("warm");
  if (options.warm && options.all_positions) {
    return Fail(Code::kInvalidArgument,
                "--warm: tokens from the cache have no logits; use --positions last");
  }
  KV_ASSIGN(options.spans, SpansOf(args));
  if (options.spans && options.all_positions) {
    return Fail(
        Code::kInvalidArgument,
        "--spans: tokens that are read where they lie have no logits; use --positions last");
  }
  if (args.Has("chunk")) {
    KV_ASSIGN(const uint64_t chunk, args.Uint("chunk", 1, std::numeric_limits<uint32_t>::max(), 1));
    options.chunk_tokens = static_cast<uint32_t>(chunk);
  }
  options.out = args.Text("out");
  return options;
}

using RowSink = std::function<void(uint32_t position, std::span<const float>)>;

// Computes the prompt and passes the wanted rows to `sink`, on the engine's thread.
Result<Receipt> Compute(Engine& engine, const LogitsOptions& options, const RowSink& sink) {
  GenerateRequest request;
  request.source = options.source;
  request.prompt = options.ids;
  request.max_tokens = 0;
  request.ignore_eos = true;
  request.chunk_tokens = options.chunk_tokens;
  request.retention = options.retention;
  request.spans = options.spans;
  request.reuse = Reuse::kBlocks;
  const auto last = static_cast<uint32_t>(options.ids.size() - 1);
  request.logits_from = options.all_positions ? 0 : last;
  request.on_logits = [&](uint32_t, uint32_t position, std::span<const float> row) {
    if (position <= last) sink(position, row);
  };
  KV_ASSIGN(const Outcome outcome, RunRequest(engine, std::move(request), [](auto) {}));
  if (outcome.finish_reason == FinishReason::kCancelled) {
    return Fail(Code::kCancelled, "interrupted");
  }
  return outcome.receipt;
}

std::string Summary(const Engine& engine, uint32_t position, std::span<const float> row) {
  std::vector<uint32_t> best(row.size());
  std::iota(best.begin(), best.end(), 0);
  const size_t shown = std::min<size_t>(5, best.size());
  // Ties go to the lower id, as in greedy sampling.
  std::partial_sort(
      best.begin(), best.begin() + static_cast<std::ptrdiff_t>(shown), best.end(),
      [row](uint32_t a, uint32_t b) { return row[a] != row[b] ? row[a] > row[b] : a < b; });
  std::string line = fmt::format("position {}: argmax {}; top", position, best[0]);
  for (size_t i = 0; i < shown; ++i) {
    line += fmt::format(" {}={:.6f}", best[i], row[best[i]]);
    if (engine.tokenizer() != nullptr) {
      line += fmt::format("({})", engine.tokenizer()->TokenText(static_cast<TokenId>(best[i])));
    }
  }
  return line + "\n";
}

Result<int> RunLogits(const Args& args) {
  KV_ASSIGN(const EngineOptions engine_options, EngineOptionsOf(args));
  KV_ASSIGN(LogitsOptions options, ReadLogitsOptions(args));
  KV_ASSIGN(options.retention, ExactTokensOf(args, engine_options));
  ExitOnInterrupt();
  KV_ASSIGN(const std::unique_ptr<Engine> engine, LoadEngine(engine_options));
  if (options.warm) {
    KV_TRY(Compute(*engine, options, [](uint32_t, std::span<const float>) {}));
  }
  const uint32_t first = options.all_positions ? 0 : static_cast<uint32_t>(options.ids.size() - 1);
  if (!options.out) {
    std::string text;
    KV_TRY(Compute(*engine, options, [&](uint32_t position, std::span<const float> row) {
      text += Summary(*engine, position, row);
    }));
    fmt::print("{}", text);
    return kExitDone;
  }
  KV_ASSIGN(NpyWriter npy,
            NpyWriter::Open(*options.out, options.ids.size() - first, engine->card().vocab_size));
  const Result<Receipt> receipt = Compute(
      *engine, options,
      [&](uint32_t position, std::span<const float> row) { npy.WriteRow(position - first, row); });
  if (!receipt) return tl::unexpected(receipt.error());
  KV_TRY(npy.Close());
  fmt::print("wrote {}: {} x {} float32; {} computed, {} from the cache\n", *options.out,
             options.ids.size() - first, engine->card().vocab_size,
             CountText(receipt->computed, "token"), receipt->cached_tokens());
  return kExitDone;
}

}  // namespace

Command LogitsCommand() {
  return Grouped(
      {"logits", "raw float32 logits of a prompt, to compare with another engine",
       "logits --ids 1,46,348 --positions all --out x.npy",
       Join({{{"ids", "1,2,3", "token ids, as given: no BOS is added"},
              {"source-ids",
               "1,2,3",
               "token ids that an encoder-decoder model reads; --ids are its decoder's",
               FlagKind::kValue,
               {},
               "source"},
              {"positions", "last|all", "which rows (default last)"},
              {"chunk", "N", "compute the prompt N tokens at a time"},
              ExactTokensFlag(),
              {"warm", "",
               "compute the prompt, then again with its KV from the cache; print the second result",
               FlagKind::kSwitch},
              {"out", "x.npy", "write [positions][vocab] there; else print the likeliest"}},
             SpanFlags(),
             LoadFlags(),
             AdapterFlags(),
             CacheFlags()}),
       RunLogits},
      "ids model positions chunk warm out");
}

}  // namespace kvasir::cli
