// kvasir chat: a conversation in the terminal.
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <optional>

#include "base/result.h"
#include "base/utf8.h"
#include "cli/command.h"
#include "cli/engine_flags.h"
#include "cli/generation.h"
#include "cli/interrupt.h"
#include "text/prompt.h"

namespace kvasir::cli {
namespace {

// Reads lines of stdin with a prompt, and can be interrupted (getline would treat a signal as the
// end of the input).
class LineReader {
 public:
  enum class End { kLine, kInput, kInterrupted };
  End Read(std::string& line) {
    const InterruptScope interrupt;  // before the prompt is shown: then the user may press Ctrl-C
    fmt::print("> ");
    std::fflush(stdout);
    for (;;) {
      if (const size_t newline = buffer_.find('\n'); newline != std::string::npos) {
        line = buffer_.substr(0, newline);
        buffer_.erase(0, newline + 1);
        if (!line.empty() && line.back() == '\r') line.pop_back();
        return End::kLine;
      }
      pollfd waits[] = {{STDIN_FILENO, POLLIN, 0}, {interrupt.fd(), POLLIN, 0}};
      if (poll(waits, 2, -1) < 0 && errno == EINTR) continue;
      if (interrupt.interrupted()) return End::kInterrupted;
      char bytes[4096];
      const ssize_t size = read(STDIN_FILENO, bytes, sizeof bytes);
      if (size > 0) {
        buffer_.append(bytes, static_cast<size_t>(size));
      } else if (size < 0 && errno == EINTR) {
        continue;
      } else if (!buffer_.empty()) {
        buffer_ += '\n';  // the last line may have no newline
      } else {
        return End::kInput;
      }
    }
  }

 private:
  std::string buffer_;
};

std::string ReceiptLine(const Receipt& receipt) {
  // The answer grew past the length at which RoPE longrope changes its factors.
  const std::string again = receipt.recomputed == 0
                                ? ""
                                : fmt::format("; {} computed again for RoPE", receipt.recomputed);
  return fmt::format("[prompt {} tokens: {} from cache, {} computed; {:.{}f} ms to first token{}]",
                     receipt.prompt_tokens, receipt.cached_tokens(), receipt.computed,
                     receipt.ttft_ms, receipt.ttft_ms < 10 ? 1 : 0, again);
}

// A conversation: system message, turns so far. One thread.
class Conversation {
 public:
  // `own` replaces the model's template; nullptr: the model's.
  Conversation(Engine& engine, const ChatTemplate* own, GenerateRequest request,
               std::optional<std::string> system)
      : engine_(engine), own_(own), request_(std::move(request)), system_(std::move(system)) {
    Reset();
  }

  void Reset() {
    messages_.clear();
    if (system_) messages_.push_back({"system", *system_});
  }

  // Prints the answer to `text` and keeps both, unless the turn fails.
  Status Turn(const std::string& text) {
    messages_.push_back({"user", text});
    const Result<Outcome> outcome = Answer();
    if (!outcome) {
      messages_.pop_back();
      return tl::unexpected(outcome.error());
    }
    messages_.push_back({"assistant", outcome->text});
    if (outcome->finish_reason == FinishReason::kCancelled) fmt::print(" [stopped]");
    fmt::print("\n{}\n", ReceiptLine(outcome->receipt));
    return {};
  }

 private:
  Result<Outcome> Answer() {
    GenerateRequest request = request_;
    KV_ASSIGN(request.prompt, EncodeChat(engine_, messages_, 0, own_));
    return RunRequest(engine_, std::move(request), [](std::string_view piece) {
      std::fwrite(piece.data(), 1, piece.size(), stdout);
      std::fflush(stdout);
    });
  }

  Engine& engine_;
  const ChatTemplate* const own_;
  const GenerateRequest request_;
  const std::optional<std::string> system_;
  std::vector<ChatMessage> messages_;
};

// Reads and answers until the input ends. Reports a failed turn; without a terminal also in the
// exit status.
Result<int> Talk(Conversation& conversation) {
  const bool terminal = isatty(STDIN_FILENO) == 1;
  LineReader reader;
  int status = kExitDone;
  for (bool warned = false;;) {
    std::string line;
    const LineReader::End end = reader.Read(line);
    if (end == LineReader::End::kInterrupted) {
      fmt::print("\n");
      if (warned) return kExitInterrupted;
      warned = true;
      fmt::print("(/exit or Ctrl-D leaves)\n");
      continue;
    }
    warned = false;
    if (end == LineReader::End::kInput || line == "/exit") break;
    if (!terminal) fmt::print("{}\n", line);  // so that a transcript shows both sides
    if (line.empty()) continue;
    if (line == "/reset") {
      conversation.Reset();
      fmt::print("(the conversation starts anew; what the cache holds stays)\n");
    } else if (line.front() == '/') {
      fmt::print("(commands: /exit, /reset)\n");
    } else if (const size_t bad = FirstInvalidUtf8(line); bad != line.size()) {
      std::fflush(stdout);
      fmt::print(stderr, "kvasir chat: byte {} of the line is not UTF-8; it was not sent\n", bad);
      status = terminal ? kExitDone : kExitWrongInput;
    } else if (const Status answered = conversation.Turn(line); !answered) {
      std::fflush(stdout);
      fmt::print(stderr, "kvasir chat: {}\n", answered.error().text());
      status = terminal ? kExitDone : ExitStatus(answered.error().code);
    }
  }
  fmt::print("\n");
  return status;
}

Result<int> RunChat(const Args& args) {
  KV_ASSIGN(const EngineOptions options, EngineOptionsOf(args));
  GenerateRequest request;
  KV_TRY(ReadSampling(args, request));
  KV_ASSIGN(const std::unique_ptr<ChatTemplate> own, OwnTemplate(args));
  ExitOnInterrupt();
  KV_ASSIGN(const std::unique_ptr<Engine> engine, LoadEngine(options));
  TakeDefaults(args, engine->card().sampling, request.sampling);
  if (const std::optional<std::string> text = engine->card().sampling.Text()) {
    fmt::print(
        "(generation_config.json: {}; flags come first, --generation-config none is "
        "without it)\n",
        *text);
  }
  // A model without a tokenizer or template is refused before the first line is read.
  KV_TRY(EncodeChat(*engine, {{"user", "?"}}, 0, own.get()));
  Conversation conversation(*engine, own.get(), std::move(request), args.Text("system"));
  return Talk(conversation);
}

}  // namespace

Command ChatCommand() {
  return {"chat",
          "a chat in the terminal; after each turn one line says what came from the cache",
          "chat --system \"You are Kvasir, a small assistant that remembers.\"",
          Join({{{"system", "TEXT", "the system message"}}, AnswerFlags()}),
          RunChat,
          "In the chat: /exit or Ctrl-D leaves, /reset begins a new conversation (what the cache "
          "holds stays), Ctrl-C stops an answer."};
}

}  // namespace kvasir::cli
