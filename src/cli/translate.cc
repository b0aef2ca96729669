// kvasir translate: what an encoder-decoder model answers to texts, or to a source of ids.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/result.h"
#include "cli/command.h"
#include "cli/engine_flags.h"
#include "cli/generation.h"
#include "cli/interrupt.h"
#include "cli/progress.h"
#include "cli/text_lines.h"
#include "cli/text_translation.h"
#include "observe/receipt_json.h"
#include "server/translation_request.h"
#include "text/languages.h"

namespace kvasir::cli {
namespace {

constexpr const char* kTextFlags[] = {"source", "target", "split"};

// What is asked for: a source of ids, or texts.
struct TranslateOptions {
  bool has_ids = false;
  std::vector<TokenId> source_ids;
  std::optional<TokenId> target_id;
  std::optional<std::string> source, target;  // languages
  bool splits_sentences = false;
  std::vector<std::string> files;
  GenerateRequest request;
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

Result<TranslateOptions> ReadTranslateOptions(const Args& args) {
  TranslateOptions options;
  options.files = args.List(kOperands);
  options.has_ids = args.Has("source-ids") || args.Has("target-id");
  KV_TRY(options.has_ids ? ReadIdFlags(args, &options) : ReadTextFlags(args, &options));
  KV_TRY(ReadSampling(args, options.request));
  if (args.Has("max-tokens")) {
    KV_ASSIGN(const uint64_t most, args.Uint("max-tokens", 1, uint64_t{1} << 30, 1));
    options.request.max_tokens = static_cast<uint32_t>(most);
  }
  return options;
}

// What the decoder reads: its start and, unless the model has but one pair, a language, which
// counts as a token of the answer.
void SetPrompt(const Engine& engine, std::optional<TokenId> language, GenerateRequest* request) {
  request->prompt = {*engine.card().decoder_start};
  if (!language) return;
  request->prompt.push_back(*language);
  if (request->max_tokens != UINT32_MAX) --request->max_tokens;
}

Result<int> TranslateIds(Engine& engine, const TranslateOptions& options, bool json) {
  if (!options.target_id && !engine.card().language_pair) {
    return Fail(Code::kInvalidArgument,
                "--target-id is missing; give the target language's token as --target-id N");
  }
  GenerateRequest request = options.request;
  request.source = options.source_ids;
  SetPrompt(engine, options.target_id, &request);
  KV_ASSIGN(const Outcome outcome, RunRequest(engine, request, [](std::string_view) {}));
  std::vector<TokenId> tokens = request.prompt;
  tokens.insert(tokens.end(), outcome.tokens.begin(), outcome.tokens.end());
  if (json) {
    const nlohmann::json object = {{"tokens", tokens},
                                   {"finish_reason", ToString(outcome.finish_reason)},
                                   {"receipt", ReceiptJson(outcome.receipt)}};
    fmt::print("{}\n", object.dump());
  } else {
    fmt::print("{}\n", fmt::join(tokens, ","));
  }
  return outcome.finish_reason == FinishReason::kCancelled ? kExitInterrupted : kExitDone;
}

Result<TokenId> FindLanguage(const Languages& languages, const char* flag,
                             const std::optional<std::string>& code) {
  if (!code) {
    return Fail(Code::kInvalidArgument,
                "--{} is missing; give the languages as --source en --target fr (or token ids as "
                "--source-ids 1,2,3 --target-id N)",
                flag);
  }
  const Result<Language> found = languages.Find(*code);
  if (!found) return Fail(found.error().code, "--{}: {}", flag, found.error().message);
  return found->id;
}

// The score is as transformers' beam search with length_penalty 1 counts it: the start token does
// not count, and the language adds 0.
nlohmann::json JsonOf(const Translation& translation) {
  nlohmann::json object = {{"text", translation.text}, {"tokens", translation.tokens}};
  if (translation.tokens.empty()) return object;  // of an empty text
  const double length = static_cast<double>(translation.tokens.size() - 1);
  object["score"] = translation.logprob / length;
  object["finish_reason"] = ToString(translation.finish_reason);
  object["receipt"] = ReceiptJson(translation.receipt);
  return object;
}

nlohmann::json JsonOf(const TranslatedLine& line, bool splits_sentences) {
  if (!splits_sentences) {
    return JsonOf(line.sentences.empty() ? Translation{} : line.sentences.front());
  }
  nlohmann::json object = {{"text", line.text}, {"sentences", nlohmann::json::array()}};
  for (const Translation& sentence : line.sentences) {
    object["sentences"].push_back(JsonOf(sentence));
  }
  return object;
}

// A language that is given to a model for one pair must be the pair's.
Status CheckPair(const LanguagePair& pair, const TranslateOptions& options) {
  for (const auto& [flag, given, own] : {std::tuple("source", options.source, pair.source),
                                         {"target", options.target, pair.target}}) {
    if (!given || *given == own) continue;
    return Fail(Code::kInvalidArgument, "--{}: '{}', but the model translates {}; leave it out",
                flag, given->substr(0, 40),
                own.empty() ? "one pair of languages, which its files do not name"
                            : "from " + pair.source + " to " + pair.target);
  }
  return {};
}

// The frame of sources and the language that the decoder reads.
Status ReadLanguages(const Engine& engine, const TranslateOptions& options,
                     TranslationOptions* translation) {
  if (const auto& pair = engine.card().language_pair; pair && engine.tokenizer() != nullptr) {
    translation->frame = pair->frame;
    return CheckPair(*pair, options);
  }
  KV_ASSIGN(const TranslationModel model, TranslationModelOf(engine));
  if (model.languages.empty()) {
    return Fail(Code::kInvalidArgument, "--model: {}; give token ids as --source-ids 1,2,3{}",
                engine.card().no_text.value_or("its tokenizer has no languages or no </s>"),
                engine.card().language_pair ? "" : " --target-id N");
  }
  KV_ASSIGN(const TokenId source, FindLanguage(model.languages, "source", options.source));
  KV_ASSIGN(const TokenId target, FindLanguage(model.languages, "target", options.target));
  translation->frame = FrameOf(*engine.tokenizer(), source, model.place);
  translation->target = {target};
  if (translation->request.max_tokens != UINT32_MAX) --translation->request.max_tokens;
  return {};
}

Result<int> TranslateTexts(Engine& engine, const TranslateOptions& options, bool json) {
  TranslationOptions translation{.splits_sentences = options.splits_sentences,
                                 .request = options.request};
  KV_TRY(ReadLanguages(engine, options, &translation));
  if (json) translation.request.logprobs = 0;
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
    progress.Show(fmt::format("translated {} lines; {} tokens so far", lines, tokens));
  }));
  return kExitDone;
}

Result<int> RunTranslate(const Args& args) {
  KV_ASSIGN(const EngineOptions engine_options, EngineOptionsOf(args));
  KV_ASSIGN(TranslateOptions options, ReadTranslateOptions(args));
  ExitOnInterrupt();
  KV_ASSIGN(const std::unique_ptr<Engine> engine, LoadEngine(engine_options));
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
  return {
      "translate",
      "translates the lines of files or of standard input",
      "translate --model m2m100 --source en --target fr news.txt",
      Join({{{"source-ids",
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
             {"json", "",
              "an object a line: text, tokens (start, language and end included), "
              "score, receipt",
              FlagKind::kSwitch}},
            std::move(sampling),
            LoadFlags(),
            CacheFlags()}),
      RunTranslate,
      "Each line is a text, and each answer a line, in the same order. An empty line has an empty "
      "answer.\n",
      std::numeric_limits<size_t>::max()};
}

}  // namespace kvasir::cli
