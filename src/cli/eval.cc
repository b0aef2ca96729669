// kvasir eval: what a KV format costs this model.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cstdio>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "api/translation_model.h"
#include "base/atomic_file.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/result.h"
#include "cli/adapter_flags.h"
#include "cli/command.h"
#include "cli/engine_flags.h"
#include "cli/eval_options.h"
#include "cli/eval_retention.h"
#include "cli/eval_spans.h"
#include "cli/generation.h"
#include "cli/interrupt.h"
#include "cli/progress.h"
#include "cli/sampling_flags.h"
#include "eval/kept_quality.h"
#include "eval/report.h"
#include "kvasir/images.h"

namespace kvasir::cli {

using namespace eval;
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kDefaultWindow = 4096;
constexpr uint64_t kSmallParameters = 50'000'000;

Status WriteSvg(const std::string& path, const std::string& svg) {
  const Status written = WriteAtomicFile(path, svg, {.readers = Readers::kByUmask});
  if (written) return {};
  return Fail(Code::kIoError, "--svg: {}", written.error().message);
}

// Checks the formats; an error names the flag that gave the format.
Status CheckChoices(const Comparison& comparison, const EvalOptions& options, const Args& args) {
  for (const KvChoice& choice : options.choices) {
    const Result<MemoryPlan> plan = comparison.PlanOf(choice);
    if (plan) continue;
    Error error = plan.error();
    if (args.Has("formats") && error.field == "kv_format") error.field = "formats";
    return tl::unexpected(std::move(error));
  }
  return {};
}

// --recall, else the evaluation set beside the model, if it has one.
Result<std::vector<Probe>> ReadRecall(const EvalOptions& options, const Engine& engine) {
  const bool asked = options.recall && *options.recall != "off";
  if (asked && engine.card().decoder_start) {
    return Fail(Code::kInvalidArgument,
                "--recall: {} translates and answers no questions; leave "
                "it out",
                engine.card().id);
  }
  if (asked) return ReadProbes(*options.recall);
  std::error_code error;
  const fs::path beside = fs::path(engine.card().path) / "eval.jsonl";
  if (!fs::is_regular_file(beside, error)) return std::vector<Probe>{};
  return ReadProbes(beside.string());
}

// Reads the sources of an encoder-decoder model, and computes its answers to them.
Result<EvalText> ReadTranslations(const EvalOptions& options, Engine& engine) {
  const TextLimits limits{options.tokens, engine.card().ctx_size};
  const bool is_pair = engine.card().language_pair.has_value();  // which needs no languages
  if (options.ids && (options.target_id || is_pair)) {
    KV_ASSIGN(Sources sources, SourcesOfIds(engine, *options.ids, limits));
    std::vector<TokenId> target;
    if (options.target_id) target.push_back(*options.target_id);
    return TextOfSources(engine, *options.ids, std::move(sources), target);
  }
  if (!options.text || !(options.source || is_pair)) {
    return Fail(Code::kInvalidArgument,
                "--text: {} translates: give --text FILE --source en --target fr, whose lines are "
                "the sources, or --ids FILE --target-id N",
                engine.card().id);
  }
  KV_ASSIGN(const TranslationModel model, TranslationModelOf(engine));
  if (!model.reads_text()) {
    return Fail(Code::kInvalidArgument, "--model: {}; give --ids FILE{}",
                engine.card().no_text.value_or("its tokenizer has no languages or no </s>"),
                is_pair ? "" : " --target-id N");
  }
  KV_ASSIGN(const Direction direction,
            DirectionOf(model, *engine.tokenizer(), options.source, options.target));
  KV_ASSIGN(Sources sources, SourcesOfFile(engine, *options.text, direction.frame, limits));
  return TextOfSources(engine, *options.text, std::move(sources), direction.target);
}

Result<EvalText> ReadEvalText(const EvalOptions& options, Engine& engine,
                              const std::vector<Probe>& probes) {
  if (engine.card().decoder_start) return ReadTranslations(options, engine);
  if (options.source || options.target_id) {
    return Fail(Code::kInvalidArgument, "--{}: {} has no encoder, so it does not translate",
                options.source ? "source" : "target-id", engine.card().id);
  }
  const TextLimits limits{options.tokens, engine.card().ctx_size};
  if (options.ids) return TextOfIds(engine, *options.ids, limits);
  if (options.text) return TextOfFile(engine, *options.text, limits);
  if (!probes.empty()) return TextOfProbes(engine, probes, limits);
  return Fail(
      Code::kInvalidArgument,
      "--text is missing: {} has no evaluation set (eval.jsonl) beside it; give --text FILE, "
      "a UTF-8 text of at least 20 kB like the texts that the model will read, or --ids FILE",
      engine.card().path);
}

// Tells whether a format trades quality for memory; only then the search for layers is worth it.
bool IsLossy(const std::string& format) {
  return format.find("fp8") != std::string::npos || format.find("int") != std::string::npos ||
         format.find("nf4") != std::string::npos;
}

Result<EvalReport> Evaluate(Comparison& comparison, const EvalOptions& options,
                            const EvalText& text, std::vector<Probe> probes) {
  const ModelCard& card = comparison.reference().card();
  EvalReport report{.model = card.id, .weights = card.dtype, .content = card.content};
  report.reference_bytes_per_token = comparison.reference().plan().kv_bytes_per_token;
  report.text = text.source;
  report.tokens = text.scored_tokens();
  report.windows = text.windows.size();
  for (const auto& window : text.windows) {
    report.window_tokens = std::max<uint64_t>(report.window_tokens, window.size());
  }
  report.max_kl = options.max_kl;
  report.probes = std::move(probes);
  KV_ASSIGN(report.reference_answers, comparison.AnswerReference(report.probes));
  KV_ASSIGN(std::vector<Measured> all, comparison.Measure(options.choices, text, report.probes));
  for (Measured& measured : all) report.formats.push_back({std::move(measured), std::nullopt});
  if (!options.layers.value_or(card.parameters <= kSmallParameters)) return report;
  for (FormatReport& format : report.formats) {
    if (!IsLossy(format.measured.choice.format)) continue;
    KV_ASSIGN(format.layers, StudyLayers(format.measured, card.num_layers, options.max_kl,
                                         [&](std::span<const KvChoice> choices) {
                                           return comparison.Measure(choices, text, {});
                                         }));
    if (!format.layers->verified || report.probes.empty()) continue;
    Measured& verified = *format.layers->verified;
    KV_ASSIGN(std::vector<Measured> answered,
              comparison.Measure(std::span(&verified.choice, 1), {}, report.probes));
    verified.answers = std::move(answered.front().answers);
  }
  return report;
}

// Keeps the results beside the model images. Only warns when the folder cannot be written.
void Keep(const EvalReport& report, const EngineOptions& engine) {
  const std::optional<std::string> folder = ImageFolderOf(engine.cache_dir);
  if (!folder) return;
  for (const Measured* row : report.rows()) {
    const Status kept =
        KeepQuality(*folder, {.content = report.content,
                              .kv_format = row->kv_format,
                              .model = report.model,
                              .weights = report.weights,
                              .text = report.text,
                              .date = fmt::format("{:%F}", fmt::gmtime(std::time_t{UnixS()})),
                              .tokens = row->quality.tokens,
                              .kl = row->quality.kl,
                              .kl_p99 = row->quality.kl_p99,
                              .same_top = row->quality.same_top});
    if (kept) continue;
    Log(LogLevel::kWarning, "cannot keep the result for 'kvasir serve': " + kept.error().message);
    return;
  }
}

Result<int> RunEval(const Args& args) {
  if (args.Has("spans")) return RunEvalSpans(args);
  KV_ASSIGN(EngineOptions engine, EngineOptionsOf(args));
  engine.retention = {};  // the command compares it
  const auto limit_window = [&]() -> Status {
    if (engine.ctx_size) return {};
    KV_ASSIGN(const MemoryPlan plan, Engine::PlanMemory(engine));
    engine.ctx_size = std::min(plan.ctx_size, kDefaultWindow);
    return {};
  };
  if (args.Has("retention")) {
    KV_TRY(limit_window());
    return RunRetentionEval(args, std::move(engine));
  }
  if (args.Has("stream")) {
    return Fail(Code::kInvalidArgument, "--stream: needs --retention POLICY");
  }
  KV_ASSIGN(const EvalOptions options, ReadEvalOptions(args, engine));
  ExitOnInterrupt();
  KV_TRY(limit_window());
  Progress progress;
  ComparisonOptions comparison_options{.engine = engine, .load = LoadEngine};
  comparison_options.say = [&progress](const std::string& line) { progress.Show(line); };
  KV_ASSIGN(const std::unique_ptr<Comparison> comparison,
            Comparison::Create(std::move(comparison_options)));
  KV_TRY(CheckChoices(*comparison, options, args));
  Engine& reference = comparison->reference();
  KV_ASSIGN(std::vector<Probe> probes, ReadRecall(options, reference));
  KV_ASSIGN(const EvalText text, ReadEvalText(options, reference, probes));
  if (options.recall == "off") probes.clear();
  KV_ASSIGN(const EvalReport report, Evaluate(*comparison, options, text, std::move(probes)));
  progress.Clear();
  Keep(report, engine);
  if (args.Has("json")) {
    fmt::print("{}\n",
               JsonOf(report).dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
  } else {
    fmt::print("{}", TablesOf(report));
  }
  // Last: a plot that cannot be written must not cost the report.
  if (options.svg) KV_TRY(WriteSvg(*options.svg, SvgOf(report)));
  return kExitDone;
}

}  // namespace

Command EvalCommand() {
  return Grouped(
      {"eval",
       "what a KV format or a bounded context costs this model: KL divergence, top-1 agreement, "
       "recall, by depth and layer",
       "eval --text book.txt --formats int8,int4 --svg eval.svg",
       Join(
           {{{"text", "FILE",
              "UTF-8 text to compare over (default: the conversations of the evaluation set beside "
              "the model)"},
             {"ids", "FILE",
              "token ids instead of a text, as a JSON array or separated by white space: needs no "
              "tokenizer, and adds no BOS"},
             {"source", "LANG",
              "of an encoder-decoder model: language of the text, each of whose lines is a source; "
              "a "
              "model for one pair of languages needs none"},
             {"target", "LANG", "with --source: language of the answers"},
             {"target-id", "N",
              "of an encoder-decoder model: token id of the target language, if it has several, "
              "with "
              "--ids, each of whose lines is a source"},
             {"tokens", "N", "at most this many tokens of the text (default 16384)"},
             {"ctx-size", "N",
              "longest window in tokens (default 4096, or what the model was trained for)"},
             {"formats", "LIST", "int8,k=int8,v=f16,int4 (default: that of --kv-format, else all)"},
             {"recall", "FILE",
              "questions with answers, as JSON lines: {\"messages\": [...], \"expect\": \"words\", "
              "\"kind\": ...} (default: the evaluation set beside the model; off: none)"},
             EvalSpansFlag(),
             {"layers", "on|off",
              "each layer alone, and which to keep in f16 (default: on below 50M parameters)"},
             {"max-kl", "X",
              "mean KL in nats that a recommended list of layers must meet (default 0.005: on "
              "average no probability changes by more than 5 percentage points)"},
             {"retention", "POLICY",
              "measure what sequences lose that drop tokens, instead of KV formats: "
              "heavy:budget=512 (may be given several times)",
              FlagKind::kList},
             {"stream", "",
              "with --retention: perplexity of a text beyond the context, by tenth, beside full "
              "attention in windows of the context",
              FlagKind::kSwitch},
             {"svg", "FILE", "a plot"},
             {"json", "", "one object with every figure", FlagKind::kSwitch}},
            LoadFlags(),
            AdapterFlags()}),
       RunEval,
       "KL is sum p (log p - log q) with p of f32 KV and q of the format, the same weights; errors "
       "are standard errors over tokens. What is found is kept in the cache folder, and 'kvasir "
       "serve' prints it for its KV format."},
      "model text formats tokens svg json");
}

}  // namespace kvasir::cli
