// kvasir translate: what an encoder-decoder model answers to texts, or to a source of ids.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>

#include "api/translation_model.h"
#include "base/result.h"
#include "base/sizes.h"
#include "cli/command.h"
#include "cli/engine_flags.h"
#include "cli/generation.h"
#include "cli/interrupt.h"
#include "cli/progress.h"
#include "cli/sampling_flags.h"
#include "cli/text_lines.h"
#include "cli/text_translation.h"
#include "cli/translation.h"
#include "kvasir/sampling_ranges.h"
#include "observe/receipt_json.h"

namespace kvasir::cli {
namespace {

constexpr uint32_t kMaxChoices = 128;
constexpr const char* kTextFlags[] = {"source", "target", "split"};
constexpr uint32_t kSourcesAtOnce = 16;  // where --parallel does not say it

// Options of the command: a source of ids, or texts.
struct TranslateOptions {
  bool has_ids = false;
  std::vector<TokenId> source_ids;
  std::optional<TokenId> target_id;
  std::optional<std::string> source, target;  // languages
  bool splits_sentences = false;
  std::vector<std::string> files;
  float length_penalty = 1;
  GenerateRequest request;

  // Returns the number of sequences for one source.
  uint32_t width() const { return request.beams ? request.beams->beams : request.n; }
};

Status ReadIdFlags(const Args& args, TranslateOptions* options) {
  if (!args.Has("source-ids")) {
    return Fail(Code::kInvalidArgument,
                "--source-ids is missing; give the source as --source-ids 1,2,3 and the target "
                "language as --target-id N");
  }
  for (const char* flag : kTextFlags) {
    if (!args.Has(flag)) continue;
    return Fail(Code::kInvalidArgument,
                "--{}: is for texts; leave out --source-ids and "
                "--target-id, or this",
                flag);
  }
  if (!options->files.empty()) {
    return Fail(Code::kInvalidArgument, "'{}': no file is read beside --source-ids",
                options->files.front());
  }
  KV_ASSIGN(options->source_ids, ParseIds(*args.Text("source-ids"), "source-ids"));
  if (!args.Has("target-id")) return {};
  KV_ASSIGN(const std::vector<TokenId> target, ParseIds(*args.Text("target-id"), "target-id"));
  if (target.size() != 1) {
    return Fail(Code::kInvalidArgument, "--target-id: {} ids; give one", target.size());
  }
  options->target_id = target[0];
  return {};
}

Status ReadTextFlags(const Args& args, TranslateOptions* options) {
  options->source = args.Text("source");
  options->target = args.Text("target");
  static constexpr std::string_view kSplits[] = {"none", "sentences"};
  KV_ASSIGN(const std::string split, args.OneOf("split", kSplits, "none"));
  options->splits_sentences = split == "sentences";
  return {};
}

Result<EarlyStopping> EarlyStoppingOf(const Args& args) {
  static constexpr std::string_view kValues[] = {"false", "true", "never"};
  KV_ASSIGN(const std::string value, args.OneOf("early-stopping", kValues, "false"));
  if (value == "true") return EarlyStopping::kTrue;
  return value == "never" ? EarlyStopping::kNever : EarlyStopping::kFalse;
}

// Refuses flags that change the answer and that a beam search does not have.
Status CheckBesideBeams(const Args& args, const GenerateRequest& request) {
  const auto refuse = [&args](const char* flag, const char* why) {
    return Fail(Code::kInvalidArgument, "{}: {}; leave out this or --beams", args.Written(flag),
                why);
  };
  if (request.sampling.temperature > 0) return refuse("temperature", "a beam search samples none");
  if (!request.stop.empty()) return refuse("stop", "a beam search has no stop strings");
  for (const char* flag : {"presence-penalty", "frequency-penalty"}) {
    if (args.Has(flag)) return refuse(flag, "a beam search has none");
  }
  return {};
}

Status ReadSearchFlags(const Args& args, TranslateOptions* options) {
  GenerateRequest& request = options->request;
  BeamParams search;
  const auto number = [&args](const char* flag, uint32_t min, uint32_t max, uint32_t otherwise,
                              uint32_t* out) -> Status {
    KV_ASSIGN(const uint64_t value, args.Uint(flag, min, max, otherwise));
    *out = static_cast<uint32_t>(value);
    return {};
  };
  KV_TRY(number("beams", 1, kMaxBeams, 1, &search.beams));
  KV_TRY(number("hypotheses", 1, kMaxChoices, 1, &request.n));
  KV_TRY(number("no-repeat-ngram-size", 0, kMaxNgram, 0, &request.no_repeat_ngram_size));
  KV_TRY(number("min-tokens", 0, UINT32_MAX, 0, &request.min_tokens));
  KV_ASSIGN(search.length_penalty,
            args.Float("length-penalty", {kLengthPenaltyRange.least, kLengthPenaltyRange.most}, 1));
  KV_ASSIGN(search.early_stopping, EarlyStoppingOf(args));
  options->length_penalty = search.length_penalty;
  if (request.min_tokens > request.max_tokens) {
    return Fail(Code::kInvalidArgument, "--min-tokens: {} is more than {}, {}", request.min_tokens,
                args.Written("max-tokens"), request.max_tokens);
  }
  if (search.beams == 1) {
    if (request.n == 1 || request.sampling.temperature > 0) return {};
    return Fail(Code::kInvalidArgument,
                "{}: greedy answers are all the same; give --beams of at least {}, or a "
                "--temperature",
                args.Written("hypotheses"), request.n);
  }
  if (request.n > search.beams) {
    return Fail(Code::kInvalidArgument, "{}: {} answers need as many --beams, and there are {}",
                args.Written("hypotheses"), request.n, search.beams);
  }
  KV_TRY(CheckBesideBeams(args, request));
  request.beams = search;
  return {};
}

Result<TranslateOptions> ReadTranslateOptions(const Args& args) {
  TranslateOptions options;
  options.files = args.List(kOperands);
  options.has_ids = args.Has("source-ids") || args.Has("target-id");
  KV_TRY(options.has_ids ? ReadIdFlags(args, &options) : ReadTextFlags(args, &options));
  KV_TRY(ReadSampling(args, options.request));
  KV_TRY(args.Uint("max-tokens", 1, uint64_t{1} << 30, 1));
  KV_TRY(ReadSearchFlags(args, &options));
  // Samples are sorted by their scores.
  const bool shows_scores = args.Has("json") || options.request.n > 1;
  if (shows_scores && !options.request.beams) options.request.logprobs = 0;
  return options;
}

Status SetParallel(const Args& args, const TranslateOptions& options, EngineOptions* engine) {
  const uint32_t width = options.width();
  if (!args.Has("parallel")) engine->parallel = kSourcesAtOnce * width;
  if (width <= engine->parallel) return {};
  const bool is_search = options.request.beams.has_value();
  return Fail(Code::kInvalidArgument,
              "{}: is {}, but --parallel lets {} sequences run at once, and each {} is one",
              args.Written(is_search ? "beams" : "hypotheses"), width, engine->parallel,
              is_search ? "beam" : "answer");
}

// `with_text`: the model has a text for ids.
nlohmann::json JsonOf(const Translation& translation, bool with_text) {
  const auto json_of = [with_text](const Hypothesis& hypothesis) {
    nlohmann::json object = {{"tokens", hypothesis.tokens}, {"score", hypothesis.score}};
    if (with_text) object["text"] = hypothesis.text;
    return object;
  };
  if (translation.hypotheses.empty()) {
    return {{"text", ""}, {"tokens", nlohmann::json::array()}};  // of an empty text
  }
  nlohmann::json object = json_of(translation.hypotheses.front());
  object["hypotheses"] = nlohmann::json::array();
  for (const Hypothesis& hypothesis : translation.hypotheses) {
    object["hypotheses"].push_back(json_of(hypothesis));
  }
  object["finish_reason"] = ToString(translation.finish_reason);
  object["receipt"] = ReceiptJson(translation.receipt);
  return object;
}

Result<int> TranslateIds(Engine& engine, const TranslateOptions& options, bool json) {
  if (!options.target_id && !engine.card().language_pair) {
    return Fail(Code::kInvalidArgument,
                "--target-id is missing; give the target language's token as --target-id N");
  }
  GenerateRequest request = options.request;
  request.source = options.source_ids;
  std::vector<TokenId> target;
  if (options.target_id) {
    if (static_cast<uint32_t>(*options.target_id) >= engine.card().vocab_size) {
      return Fail(Code::kInvalidArgument, "--target-id: token {} is outside the vocabulary [0, {})",
                  *options.target_id, engine.card().vocab_size);
    }
    target.push_back(*options.target_id);
  }
  KV_TRY(SetTarget(*engine.card().decoder_start, target, &request));
  TranslationEvents events(request, options.length_penalty);
  KV_ASSIGN(const FinishReason finish_reason,
            RunEvents(engine, request, [&](const Event& event) { events.Add(event); }));
  const Translation translation = events.Take();
  if (json) {
    fmt::print("{}\n", JsonOf(translation, engine.tokenizer() != nullptr).dump());
  } else if (!translation.hypotheses.empty()) {
    fmt::print("{}\n", fmt::join(translation.hypotheses.front().tokens, ","));
  }
  return finish_reason == FinishReason::kCancelled ? kExitInterrupted : kExitDone;
}

nlohmann::json JsonOf(const TranslatedLine& line, bool splits_sentences) {
  if (!splits_sentences) {
    return JsonOf(line.sentences.empty() ? Translation{} : line.sentences.front(), true);
  }
  nlohmann::json object = {{"text", line.text}, {"sentences", nlohmann::json::array()}};
  for (const Translation& sentence : line.sentences) {
    object["sentences"].push_back(JsonOf(sentence, true));
  }
  return object;
}

Result<Direction> ReadDirection(const Engine& engine, const TranslateOptions& options) {
  KV_ASSIGN(const TranslationModel model, TranslationModelOf(engine));
  if (!model.reads_text()) {
    return Fail(Code::kInvalidArgument, "--model: {}; give token ids as --source-ids 1,2,3{}",
                engine.card().no_text.value_or("its tokenizer has no languages or no </s>"),
                engine.card().language_pair ? "" : " --target-id N");
  }
  if (!model.pair && !(options.source && options.target)) {
    return Fail(Code::kInvalidArgument,
                "--{} is missing; give the languages as --source en --target fr (or token ids as "
                "--source-ids 1,2,3 --target-id N)",
                options.source ? "target" : "source");
  }
  return DirectionOf(model, *engine.tokenizer(), options.source, options.target);
}

Result<int> TranslateTexts(Engine& engine, const TranslateOptions& options, bool json) {
  KV_ASSIGN(const Direction direction, ReadDirection(engine, options));
  TranslationOptions translation{.frame = direction.frame,
                                 .splits_sentences = options.splits_sentences,
                                 .length_penalty = options.length_penalty,
                                 .request = options.request};
  KV_TRY(SetTarget(*engine.card().decoder_start, direction.target, &translation.request));
  Progress progress;
  uint64_t lines = 0;
  const auto on_line = [&](const TranslatedLine& line) {
    progress.Clear();
    ++lines;
    std::string text = json ? JsonOf(line, options.splits_sentences).dump() : line.text;
    // An answer stays one line, so that lines of input and output correspond.
    std::ranges::replace_if(
        text, [](char c) { return c == '\n' || c == '\r'; }, ' ');
    fmt::print("{}\n", text);
    std::fflush(stdout);
  };
  TextLines input(options.files);
  KV_TRY(TextTranslation(engine, std::move(translation)).Run(input, on_line, [&](uint64_t tokens) {
    progress.Show(fmt::format("translated {}; {} so far", CountText(lines, "line"),
                              CountText(tokens, "token")));
  }));
  return kExitDone;
}

Result<int> RunTranslate(const Args& args) {
  KV_ASSIGN(EngineOptions engine_options, EngineOptionsOf(args));
  KV_ASSIGN(const TranslateOptions options, ReadTranslateOptions(args));
  KV_TRY(SetParallel(args, options, &engine_options));
  ExitOnInterrupt();
  KV_ASSIGN(const std::unique_ptr<Engine> engine, LoadEngine(engine_options));
  if (!engine->card().decoder_start && !args.Has("model")) {
    return Fail(
        Code::kInvalidArgument,
        "--model is missing, and {} does not translate; give a folder of M2M-100 or NLLB-200, "
        "or a package of Argos Translate, as in 'kvasir translate --model m2m100 --source en "
        "--target fr news.txt'",
        engine->card().id);
  }
  if (!engine->card().decoder_start) {
    return Fail(Code::kInvalidArgument,
                "--model: {} has no encoder, so it does not translate; use 'kvasir run'",
                engine->card().id);
  }
  const bool json = args.Has("json");
  return options.has_ids ? TranslateIds(*engine, options, json)
                         : TranslateTexts(*engine, options, json);
}

}  // namespace

Command TranslateCommand() {
  std::vector<Flag> sampling = SamplingFlags();
  for (Flag& flag : sampling) {
    if (flag.name == "max-tokens") {
      flag.help = "at most so many tokens, the language counts (default: the context)";
    } else if (flag.name == "temperature") {
      flag.help = "0 (default): always the likeliest token, so runs repeat";
    }
  }
  std::vector<Flag> cache = CacheFlags();
  std::erase_if(cache, [](const Flag& flag) { return flag.name == "retention"; });
  for (Flag& flag : cache) {
    if (flag.name == "parallel") {
      flag.help = "sequences that run at once; each beam is one (default: those of 16 texts)";
    }
  }
  return Grouped(
      {"translate",
       "translates the lines of files or of standard input",
       "translate --model m2m100 --source en --target fr news.txt",
       Join(
           {{{"source-ids",
              "1,2,3",
              "instead of text: token ids that the encoder reads, as given",
              FlagKind::kValue,
              {},
              "source"},
             {"target-id", "N",
              "with --source-ids: token id of the target language, if the model has several"},
             {"source", "LANG",
              "language of the texts: as the model spells it, or an ISO code; a model for one pair "
              "of languages needs none"},
             {"target", "LANG", "language of the answers"},
             {"split", "none|sentences",
              "sentences: translates a line sentence by sentence and joins the answers (default "
              "none)"},
             {"beams", "N",
              "beam search with N beams, at most 16 (default 1: greedy); each is a sequence of "
              "--parallel"},
             {"hypotheses", "N",
              "or --n: with --json the N best of the search, or N samples (default 1)"},
             {"length-penalty", "X", "score = sum of log probabilities / length ** X (default 1)"},
             {"early-stopping", "false|true|never",
              "when a search with enough hypotheses ends, as in transformers (default false)"},
             {"min-tokens", "N", "at least so many tokens, the language counts (default 0)"},
             {"no-repeat-ngram-size", "N", "no N tokens come twice in an answer (default 0: any)"},
             {"json", "",
              "an object a line: text, tokens (start, language and end included), "
              "score, hypotheses, receipt",
              FlagKind::kSwitch}},
            std::move(sampling),
            LoadFlags(),
            std::move(cache)}),
       RunTranslate,
       "Arguments without a flag are files, and - is standard input, which is read too without "
       "any. "
       "Each line is a text, and each answer a line, in the same order. An empty line has an empty "
       "answer. Without --json only the best hypothesis is printed.\n",
       std::numeric_limits<size_t>::max(),
       {},
       {},
       "[FILE]..."},
      "model source target split beams json");
}

}  // namespace kvasir::cli
