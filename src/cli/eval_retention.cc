#include "cli/eval_retention.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/log.h"
#include "base/result.h"
#include "cli/command.h"
#include "cli/engine_flags.h"
#include "cli/interrupt.h"
#include "cli/progress.h"
#include "cli/shared_flags.h"
#include "eval/kept_quality.h"
#include "eval/retention.h"
#include "kvasir/images.h"

namespace kvasir::cli {

using namespace eval;
namespace {

struct RetentionInput {
  std::optional<std::string> text, ids, recall;
  uint64_t tokens;
  bool streams;
};

Result<RetentionInput> ReadInput(const Args& args) {
  RetentionInput input{.text = args.Text("text"),
                       .ids = args.Text("ids"),
                       .recall = args.Text("recall"),
                       .streams = args.Has("stream")};
  KV_ASSIGN(input.tokens, args.Uint("tokens", kMinWindowTokens, kMaxRetainedTokens,
                                    input.streams ? kMaxRetainedTokens : 16384));
  for (const char* other : {"formats", "layers", "svg", "source", "target", "target-id"}) {
    if (!args.Has(other)) continue;
    return Fail(Code::kInvalidArgument,
                "--{}: is not for --retention, which is measured in the KV "
                "format of --kv-format; leave one out",
                other);
  }
  if (input.text && input.ids) {
    return Fail(Code::kInvalidArgument, "give only one of --text and --ids");
  }
  if (input.streams && !input.text && !input.ids) {
    return Fail(Code::kInvalidArgument,
                "--stream: needs a text that is longer than the context; give --text FILE");
  }
  return input;
}

// Reads the text, in windows of at most `window_tokens` tokens.
Result<EvalText> TextFor(const RetentionInput& input, const Engine& engine,
                         const std::vector<Probe>& probes, uint32_t window_tokens) {
  const TextLimits limits{input.tokens, window_tokens};
  if (input.ids) return TextOfIds(engine, *input.ids, limits);
  if (input.text) return TextOfFile(engine, *input.text, limits);
  if (!probes.empty()) return TextOfProbes(engine, probes, limits);
  return Fail(Code::kInvalidArgument,
              "--text is missing: {} has no evaluation set (eval.jsonl) beside it; give --text "
              "FILE, a UTF-8 text of at least 20 kB, or --ids FILE",
              engine.card().path);
}

// --recall, else the evaluation set beside the model, if it has one.
Result<std::vector<Probe>> ProbesFor(const RetentionInput& input, const Engine& engine) {
  if (input.recall && *input.recall != "off") return ReadProbes(*input.recall);
  std::error_code error;
  const auto beside = std::filesystem::path(engine.card().path) / "eval.jsonl";
  if (!std::filesystem::is_regular_file(beside, error)) return std::vector<Probe>{};
  return ReadProbes(beside.string());
}

// Keeps the losses beside the model images. Only warns when the folder cannot be written.
void KeepLosses(const RetentionReport& report, const Engine& exact) {
  const std::optional<std::string> folder = ImageFolderOf(exact.options().cache_dir);
  if (!folder) return;
  for (const RetentionMeasured& one : report.measured) {
    if (one.quality.tokens == 0) continue;
    const Status kept =
        KeepQuality(*folder, {.content = exact.card().content,
                              .kv_format = report.kv_format,
                              .retention = one.name,
                              .model = report.model,
                              .weights = report.weights,
                              .text = report.text,
                              .date = fmt::format("{:%F}", fmt::gmtime(std::time_t{UnixS()})),
                              .tokens = one.quality.tokens,
                              .kl = one.quality.kl,
                              .kl_p99 = one.quality.kl_p99,
                              .same_top = one.quality.same_top});
    if (kept) continue;
    Log(LogLevel::kWarning, "cannot keep the result for 'kvasir serve': " + kept.error().message);
    return;
  }
}

}  // namespace

Result<int> RunRetentionEval(const Args& args, EngineOptions engine) {
  KV_ASSIGN(const RetentionInput input, ReadInput(args));
  std::vector<RetentionChoice> choices;
  for (const std::string& text : args.List("retention")) {
    KV_ASSIGN(choices.emplace_back(), ParseRetentionChoice(text));
  }
  ExitOnInterrupt();
  Progress progress;
  RetentionComparison::Options options{.engine = std::move(engine), .load = LoadEngine};
  options.say = [&progress](const std::string& line) { progress.Show(line); };
  KV_ASSIGN(const std::unique_ptr<RetentionComparison> comparison,
            RetentionComparison::Create(std::move(options)));
  Engine& exact = comparison->exact();
  RetentionReport report{
      .model = exact.card().id, .weights = exact.card().dtype, .kv_format = exact.plan().kv_format};
  for (const RetentionChoice& choice : choices) {
    KV_ASSIGN(report.measured.emplace_back(), comparison->Prepare(choice));
  }
  KV_ASSIGN(std::vector<Probe> probes, ProbesFor(input, exact));
  const uint32_t window = input.streams ? kMaxRetainedTokens : exact.card().ctx_size;
  KV_ASSIGN(const EvalText text, TextFor(input, exact, probes, window));
  if (input.recall == "off" || input.streams) probes.clear();
  report.text = text.source;
  report.tokens = text.scored_tokens();
  report.windows = text.windows.size();
  for (const auto& one : text.windows) {
    report.window_tokens = std::max<uint64_t>(report.window_tokens, one.size());
  }
  for (RetentionMeasured& measured : report.measured) {
    if (input.streams) {
      KV_TRY(comparison->MeasureStream(text.windows[0], &measured));
      continue;
    }
    KV_TRY(comparison->MeasureText(text, &measured));
    KV_TRY(comparison->MeasureProbes(probes, &measured));
  }
  progress.Clear();
  KeepLosses(report, exact);
  if (args.Has("json")) {
    fmt::print("{}\n",
               JsonOf(report).dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
  } else {
    fmt::print("{}", TablesOf(report));
  }
  return kExitDone;
}

}  // namespace kvasir::cli
