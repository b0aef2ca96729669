// kvasir run: one generation.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/result.h"
#include "chat/prompt.h"
#include "cli/command.h"
#include "cli/engine_flags.h"
#include "cli/generation.h"
#include "cli/interrupt.h"
#include "cli/sampling_flags.h"
#include "cli/template_flags.h"
#include "observe/receipt_json.h"

namespace kvasir::cli {
namespace {

// Checks that exactly one of --prompt and --ids gives the prompt.
Status CheckSource(const Args& args) {
  if (args.Has("prompt") == args.Has("ids")) {
    return Fail(Code::kInvalidArgument, "give {} --prompt TEXT {} --ids 1,2,3",
                args.Has("prompt") ? "only one of" : "either", args.Has("prompt") ? "and" : "or");
  }
  for (const Flag& flag : TemplateFlags()) {
    if (!args.Has(flag.name) || args.Has("chat")) continue;
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

Status ReadPrompt(const Args& args, const Engine& engine, const TemplateChoice& choice,
                  GenerateRequest& request) {
  if (args.Has("ids")) {
    KV_ASSIGN(request.prompt, ParseIds(*args.Text("ids")));
    return {};
  }
  std::string text = *args.Text("prompt");
  if (text == "-") {
    KV_ASSIGN(text, ReadStandardInput());
  }
  if (args.Has("chat")) {
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

Result<int> RunPrompt(const Args& args) {
  KV_ASSIGN(const EngineOptions options, EngineOptionsOf(args));
  GenerateRequest request;
  KV_TRY(CheckSource(args));
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
  KV_TRY(ReadPrompt(args, *engine, choice, request));
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
  return {
      "run", "one generation, printed as it comes",
      "run --chat --prompt \"My name is Mira. What is my name?\"",
      Join(
          {{{"prompt", "TEXT", "raw text; special tokens in it are parsed; -: read standard input"},
            {"ids", "1,2,3", "token ids, as given: no BOS is added"},
            {"chat", "", "TEXT is a user's message: apply the chat template", FlagKind::kSwitch},
            {"ignore-eos", "", "go on after the end token: exactly --max-tokens ids",
             FlagKind::kSwitch},
            ExactTokensFlag(),
            {"json", "", "one object: text, tokens, finish_reason, receipt, timings",
             FlagKind::kSwitch}},
           SpanFlags(),
           AnswerFlags()}),
      RunPrompt};
}

}  // namespace kvasir::cli
