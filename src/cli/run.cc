// kvasir run: one generation.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/result.h"
#include "base/utf8.h"
#include "chat/prompt.h"
#include "cli/cached_models.h"
#include "cli/command.h"
#include "cli/engine_flags.h"
#include "cli/generation.h"
#include "cli/interrupt.h"
#include "cli/sampling_flags.h"
#include "cli/span_flags.h"
#include "cli/template_flags.h"
#include "observe/receipt_json.h"

namespace kvasir::cli {
namespace {

// How --prompt is read: as it is; as a user's message; the same where the model has a template.
enum class PromptForm : uint8_t { kRaw, kChat, kChatIfTemplate };

// What the arguments without a flag stand for.
struct Worded {
  Args args;  // with --model and --prompt in their place
  PromptForm form = PromptForm::kRaw;
};

// Returns the error of a word that looks like the name of a model which is not there.
Error NotPulled(const std::string& word) {
  return {
      Code::kNotFound,
      fmt::format("'{0}' looks like a model{2}, and the Hugging Face cache does not have it: "
                  "'kvasir pull {1}' fetches it; where it is a text, give --chat --prompt '{0}'",
                  word, hub::ParseRepoRef(word) ? word : "owner/" + word, DidYouMean(word))};
}

// Checks that a word which names no model can be a text.
Status CheckText(const std::string& word) {
  if (IsFolderWithoutModel(word)) {
    return Fail(Code::kNotFound,
                "'{0}' is a folder without a model: it has neither config.json nor a .gguf; where "
                "it is a text, give --chat --prompt '{0}'",
                word);
  }
  if (IsLikeModel(word)) return tl::unexpected(NotPulled(word));
  return {};
}

// Says how a word alone was read, since it may have been meant as the name of a model.
void SayIsText(const std::string& word) {
  const char* model = std::getenv("KVASIR_MODEL");
  fmt::print(stderr,
             "kvasir run: '{}' is read as a text, since no model here has that name; {} answers "
             "('kvasir list' shows the models)\n",
             word,
             model == nullptr || *model == '\0' ? "the bundled model" : "that of KVASIR_MODEL");
}

// Takes the prompt from standard input where that is a pipe or a file.
bool TakePipe(Worded* worded) {
  if (isatty(STDIN_FILENO) != 0) return false;
  worded->args.Set("prompt", {"-"});
  if (worded->form == PromptForm::kRaw) worded->form = PromptForm::kChatIfTemplate;
  return true;
}

// Reads MODEL, TEXT or both: a word alone is a model where it names one, else a text.
Result<Worded> ReadWords(const Args& given) {
  Worded worded{given, given.Has("chat") ? PromptForm::kChat : PromptForm::kRaw};
  std::vector<std::string> words = given.List(kOperands);
  const bool has_prompt = given.Has("prompt") || given.Has("ids");
  const bool has_model = given.Has("model") || given.Has("hf-repo");
  if (words.empty()) {
    if (has_model && !has_prompt) TakePipe(&worded);
    return worded;
  }
  const size_t most = (has_prompt ? 0 : 1) + (has_model ? 0 : 1);
  if (most == 0) {
    return Fail(Code::kInvalidArgument,
                "unknown argument '{}': the flags give the model and the prompt already",
                words.front());
  }
  if (words.size() > most) {
    return Fail(Code::kInvalidArgument,
                "{} words beside the flags, and {} can be a model or a text; put a text in quotes: "
                "kvasir run \"{}\"",
                words.size(), most, fmt::join(words, " "));
  }
  bool has_text = words.size() == 2 || has_model;
  if (words.size() == 1 && !has_model) {
    KV_ASSIGN(const auto named, ModelNamed(words.front()));
    has_text = !named && !has_prompt;
    if (has_text) KV_TRY(CheckText(words.front()));
    if (has_text && MayBeModel(words.front()) && !given.Has("shape")) SayIsText(words.front());
  }
  if (words.size() == 2 || !has_text) {
    auto model = RequireModel(words.front());
    if (!model && words.size() == 2) {
      model.error().message += fmt::format(
          "; a text of several words needs quotes: kvasir run \"{}\"", fmt::join(words, " "));
    }
    KV_TRY(model);
    worded.args.Set("model", {std::move(*model)});
  }
  if (has_text) {
    worded.args.Set("prompt", {std::move(words.back())});
    if (worded.form == PromptForm::kRaw) worded.form = PromptForm::kChatIfTemplate;
  } else if (!has_prompt && !TakePipe(&worded)) {
    return Fail(Code::kInvalidArgument,
                "what should it answer? kvasir run {0} \"TEXT\"; 'kvasir chat {0}' begins a "
                "conversation",
                words.front());
  }
  return worded;
}

// Checks that exactly one of --prompt and --ids gives the prompt.
Status CheckSource(const Args& args, PromptForm form) {
  if (args.Has("prompt") == args.Has("ids")) {
    return Fail(Code::kInvalidArgument, "give {} --prompt TEXT {} --ids 1,2,3{}",
                args.Has("prompt") ? "only one of" : "either", args.Has("prompt") ? "and" : "or",
                args.Has("prompt") ? "" : ", or a text in quotes: kvasir run \"Hello\"");
  }
  for (const Flag& flag : TemplateFlags()) {
    if (!args.Has(flag.name) || form != PromptForm::kRaw) continue;
    return Fail(Code::kInvalidArgument,
                "--{}: only --chat applies a template; add --chat, or leave it out", flag.name);
  }
  if (args.Has("chat") && args.Has("ids")) {
    return Fail(Code::kInvalidArgument,
                "--chat: a chat template takes text, not --ids; give --prompt TEXT");
  }
  return {};
}

// Reads standard input without the newline at its end, which editors and echo add.
Result<std::string> ReadStandardInput() {
  std::string text{std::istreambuf_iterator<char>(std::cin), {}};
  if (text.ends_with('\n')) text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
  if (!text.empty()) return text;
  return Fail(Code::kInvalidArgument, "--prompt -: standard input is empty; give it a text");
}

// Says what is lost where somebody pipes a text into a command that has one: it is not read, since
// it may be the next lines of a script.
void SayUnread() {
  pollfd input{STDIN_FILENO, POLLIN, 0};
  if (isatty(STDIN_FILENO) == 1 || poll(&input, 1, 0) != 1 || (input.revents & POLLIN) == 0) return;
  struct stat file {};
  const bool is_empty = fstat(STDIN_FILENO, &file) != 0 || S_ISCHR(file.st_mode) ||
                        (S_ISREG(file.st_mode) && file.st_size == 0);
  if (is_empty) return;
  fmt::print(stderr,
             "kvasir run: standard input is not read, since the command has a text; leave that "
             "out, or give both as one: \"$(cat FILE) TEXT\"\n");
}

Status ReadPrompt(const Args& args, PromptForm form, const Engine& engine,
                  const TemplateChoice& choice, GenerateRequest& request) {
  if (args.Has("ids")) {
    KV_ASSIGN(request.prompt, ParseIds(*args.Text("ids")));
    return {};
  }
  std::string text = *args.Text("prompt");
  if (text == "-") {
    KV_ASSIGN(text, ReadStandardInput());
  } else if (form == PromptForm::kChatIfTemplate) {
    SayUnread();
  }
  if (const size_t invalid = FirstInvalidUtf8(text); invalid != text.size()) {
    return Fail(Code::kInvalidArgument, "--prompt: is not UTF-8 at byte {} of {}", invalid,
                text.size());
  }
  const bool has_template = choice.own != nullptr || engine.chat_template() != nullptr;
  if (form == PromptForm::kChat || (form == PromptForm::kChatIfTemplate && has_template)) {
    KV_ASSIGN(EncodedChat chat, EncodeChat(engine, {{"user", text}}, choice.now_unix_s,
                                           choice.own.get(), choice.variables));
    request.prompt = std::move(chat.ids);
    request.clock_in_prompt = chat.clock_in_prompt;
  } else {
    KV_ASSIGN(request.prompt, EncodePrompt(engine, text));
  }
  if (request.prompt.empty()) {
    return Fail(Code::kInvalidArgument,
                "--prompt: '{}' has no tokens and this model has no BOS; give some text", text);
  }
  return {};
}

// --ignore-eos promises exactly N ids, so N must fit.
Status CheckRoom(const Args& args, const Engine& engine, const GenerateRequest& request) {
  if (!args.Has("ignore-eos") || !args.Has("max-tokens")) return {};
  if (engine.options().retention.policy != Retention::kFull) return {};  // it need not fit
  const uint64_t wanted = request.prompt.size() + uint64_t{request.max_tokens};
  const uint32_t ctx_size = engine.card().ctx_size;
  if (wanted <= ctx_size) return {};
  return Fail(Code::kInvalidArgument,
              "--max-tokens: a prompt of {} tokens and {} more with --ignore-eos make {}, but the "
              "context is {}; ask for at most {}{}",
              request.prompt.size(), request.max_tokens, wanted, ctx_size,
              ctx_size - std::min<uint64_t>(ctx_size, request.prompt.size()),
              wanted <= engine.card().max_positions ? " or raise --ctx-size" : "");
}

double PerSecond(double count, double ms) { return ms > 0 ? count * 1000 / ms : 0; }

nlohmann::json TimingsJson(const Outcome& outcome, double load_ms) {
  const Receipt& receipt = outcome.receipt;
  const double prefill_ms = std::max(0.0, receipt.ttft_ms - receipt.queue_ms);
  return {{"load_ms", load_ms},
          {"queue_ms", receipt.queue_ms},
          {"prefill_ms", prefill_ms},
          {"decode_ms", std::max(0.0, outcome.total_ms - receipt.ttft_ms)},
          {"total_ms", outcome.total_ms},
          {"prefill_tok_s", PerSecond(receipt.computed, prefill_ms)},
          {"decode_tok_s", PerSecond(1, receipt.tpot_ms)}};
}

Result<int> RunPrompt(const Args& given) {
  KV_ASSIGN(const Worded worded, ReadWords(given));
  const Args& args = worded.args;
  KV_ASSIGN(const EngineOptions options, EngineOptionsOf(args));
  GenerateRequest request;
  KV_TRY(CheckSource(args, worded.form));
  KV_TRY(ReadSampling(args, request));
  request.ignore_eos = args.Has("ignore-eos");
  KV_ASSIGN(request.retention, ExactTokensOf(args, options));
  KV_ASSIGN(request.spans, SpansOf(args));
  if (args.Has("ids")) KV_TRY(ParseIds(*args.Text("ids")));  // before the model loads
  KV_ASSIGN(const TemplateChoice choice, ChooseTemplate(args));

  ExitOnInterrupt();
  const uint64_t start_ns = MonotonicNs();
  KV_ASSIGN(const std::unique_ptr<Engine> engine, LoadEngine(options));
  const double load_ms = static_cast<double>(MonotonicNs() - start_ns) / 1e6;
  if (engine->card().decoder_start) {
    return Fail(Code::kInvalidArgument,
                "--model: {} is an encoder-decoder, which answers to a source; use 'kvasir "
                "translate'",
                engine->card().id);
  }
  TakeDefaults(args, engine->card().sampling, request.sampling);
  KV_TRY(ReadPrompt(args, worded.form, *engine, choice, request));
  KV_TRY(CheckRoom(args, *engine, request));

  const bool json = args.Has("json");
  KV_ASSIGN(const Outcome outcome, RunRequest(*engine, request, [json](std::string_view piece) {
              if (json) return;
              std::fwrite(piece.data(), 1, piece.size(), stdout);
              std::fflush(stdout);
            }));
  if (json) {
    const nlohmann::json object = {{"text", outcome.text},
                                   {"tokens", outcome.tokens},
                                   {"finish_reason", ToString(outcome.finish_reason)},
                                   {"receipt", ReceiptJson(outcome.receipt)},
                                   {"timings", TimingsJson(outcome, load_ms)}};
    fmt::print("{}\n", object.dump());
  } else if (engine->tokenizer() != nullptr) {
    fmt::print("\n");
  } else {
    fmt::print("{}\n",
               fmt::join(outcome.tokens, ","));  // without a tokenizer only ids can be printed
  }
  return outcome.finish_reason == FinishReason::kCancelled ? kExitInterrupted : kExitDone;
}

}  // namespace

Command RunCommand() {
  return Grouped(
      {"run",
       "one generation, printed as it comes",
       "run \"My name is Mira. What is my name?\"",
       Join({{{"prompt", "TEXT",
               "raw text; special tokens in it are parsed; -: read standard input"},
              {"ids", "1,2,3", "token ids, as given: no BOS is added"},
              {"chat", "", "TEXT is a user's message: apply the chat template", FlagKind::kSwitch},
              {"ignore-eos", "", "go on after the end token: exactly --max-tokens ids",
               FlagKind::kSwitch},
              ExactTokensFlag(),
              {"json", "", "one object: text, tokens, finish_reason, receipt, timings",
               FlagKind::kSwitch}},
             SpanFlags(),
             AnswerFlags()}),
       RunPrompt,
       "Without flags: kvasir run \"TEXT\", kvasir run MODEL \"TEXT\". MODEL is a path or a name "
       "that "
       "'kvasir list' shows; a word alone is a model where it names one, else a text. TEXT is a "
       "user's message where the model has a chat template; -, or nothing beside the model in a "
       "pipe: "
       "read standard input.",
       SIZE_MAX,
       {},
       {},
       "[MODEL] [TEXT]"},
      "prompt model chat max-tokens temperature json");
}

}  // namespace kvasir::cli
