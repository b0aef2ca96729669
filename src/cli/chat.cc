// kvasir chat: a conversation in the terminal.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "base/ascii.h"
#include "base/nearest.h"
#include "base/result.h"
#include "base/sizes.h"
#include "base/utf8.h"
#include "chat/prompt.h"
#include "cli/cached_models.h"
#include "cli/chat_session.h"
#include "cli/command.h"
#include "cli/engine_flags.h"
#include "cli/generation.h"
#include "cli/interrupt.h"
#include "cli/line_reader.h"
#include "cli/sampling_flags.h"
#include "cli/template_flags.h"
#include "observe/receipt_json.h"

namespace kvasir::cli {
namespace {

constexpr std::string_view kHelp =
    "(/edit N TEXT      gives message N another text and takes out those after it; one of yours\n"
    "                   is answered anew\n"
    " /undo [--forget]  takes back your last message and its answer; --forget as /forget does\n"
    " /fork [NAME]      goes on in a copy; the conversation stays as it is\n"
    " /switch NAME      goes to a conversation that was forked, or back to main\n"
    " /forget [N]       takes your last message and its answer out, or message N, and all that "
    "was\n"
    "                   computed after it out of the cache\n"
    " /system [TEXT]    sets the system message, or shows it\n"
    " /list             the messages with their numbers, and the names of conversations\n"
    " /receipt          where the last prompt came from, as the server's API says it\n"
    " /reset            begins a new conversation; what the cache holds stays\n"
    " /exit, Ctrl-D     leaves; Ctrl-C stops an answer)\n";

constexpr std::string_view kCommands[] = {"/edit",   "/undo",   "/fork", "/switch",
                                          "/forget", "/system", "/list", "/receipt",
                                          "/reset",  "/help",   "/exit"};

Error UnknownCommand(std::string_view word) {
  const std::vector<std::string> known(std::begin(kCommands), std::end(kCommands));
  const std::optional<std::string> nearest = Nearest(word, known);
  return {Code::kInvalidArgument,
          fmt::format("unknown command {}{}; /help lists them", word,
                      nearest ? fmt::format(" (did you mean {}?)", *nearest) : "")};
}

// Tells whether a word leaves the conversation, as other programs call it too.
bool IsExit(std::string_view word) { return word == "/exit" || word == "/quit" || word == "/bye"; }

// A line that begins with a slash.
struct CommandLine {
  std::string_view word, rest;  // rest: without spaces around it
};

CommandLine Split(std::string_view line) {
  const size_t space = std::min(line.find(' '), line.size());
  return {line.substr(0, space), Trimmed(line.substr(space), " ")};
}

Result<size_t> ReadIndex(std::string_view text, std::string_view usage) {
  const std::optional<uint64_t> index = ParseUint(text);
  if (index) return static_cast<size_t>(*index);
  return Fail(Code::kInvalidArgument, "{}; /list shows the numbers", usage);
}

Status NeedsNothing(const CommandLine& command) {
  if (command.rest.empty()) return {};
  return Fail(Code::kInvalidArgument, "{} takes nothing after it, and \"{}\" was there",
              command.word, command.rest);
}

// Returns a message on one line, cut after 100 bytes.
std::string Short(std::string_view text) {
  constexpr size_t kMost = 100;
  std::string line(text.substr(0, kMost));
  while (!line.empty() && FirstInvalidUtf8(line) != line.size()) line.pop_back();
  std::ranges::replace(line, '\n', ' ');
  return line.size() < text.size() ? line + "..." : line;
}

Status List(const ChatSession& chat) {
  KV_ASSIGN(const std::vector<ChatSession::Line> lines, chat.Lines());
  for (size_t i = 0; i < lines.size(); ++i) {
    fmt::print("{:>4}  {:<9} {:>13}  {}\n", i, lines[i].role, CountText(lines[i].tokens, "token"),
               Short(lines[i].content));
  }
  const std::vector<std::string> names = chat.Names();
  std::string others;
  for (size_t i = 1; i < names.size(); ++i) others += (i > 1 ? ", " : "") + names[i];
  fmt::print("(conversation {}{}{})\n", names.front(), chat.on_disk() ? ", " + chat.id() : "",
             others.empty() ? "" : "; others: " + others);
  return {};
}

Status ShowSystem(const ChatSession& chat) {
  KV_ASSIGN(const std::vector<ChatSession::Line> lines, chat.Lines());
  const bool has_one = !lines.empty() && lines.front().role == "system";
  fmt::print("({})\n", has_one ? "system: " + lines.front().content : "no system message is set");
  return {};
}

void SayForgotten(std::string_view what, const Erasure& erased) {
  const std::string kept = erased.kept_shared == 0
                               ? ""
                               : fmt::format("; kept {} that another conversation contains",
                                             CountText(erased.kept_shared, "block"));
  const std::string disk =
      erased.disk_blocks == 0
          ? ""
          : fmt::format(", {} on the disk", CountText(erased.disk_blocks, "block"));
  fmt::print("({} forgotten: erased {} with {}{}{})\n", what, CountText(erased.blocks, "block"),
             CountText(erased.tokens, "token"), disk, kept);
}

Status ForgetLast(ChatSession& chat) {
  KV_ASSIGN(const Erasure erased, chat.ForgetLast());
  SayForgotten("your last message and its answer are", erased);
  return {};
}

Status Forget(ChatSession& chat, std::string_view rest) {
  if (rest.empty()) return ForgetLast(chat);
  KV_ASSIGN(const size_t index,
            ReadIndex(rest,
                      "/forget takes the number of a message, or nothing for your last one "
                      "and its answer"));
  KV_ASSIGN(const Erasure erased, chat.Forget(index));
  SayForgotten(fmt::format("message {} is", index), erased);
  return {};
}

Status Edit(ChatSession& chat, std::string_view rest) {
  const CommandLine parts = Split(rest);
  KV_ASSIGN(const size_t index,
            ReadIndex(parts.word, "/edit needs the number of a message and its new text"));
  if (parts.rest.empty()) {
    return Fail(Code::kInvalidArgument, "/edit {} needs the new text of the message", index);
  }
  KV_ASSIGN(const std::vector<ChatSession::Line> lines, chat.Lines());
  KV_TRY(chat.Edit(index, std::string(parts.rest)));
  if (index + 2 < lines.size()) {  // more than its answer
    fmt::print("({} after it taken out)\n", CountText(lines.size() - index - 1, "message"));
  }
  return {};
}

// Carries out a command other than /exit.
Status Obey(ChatSession& chat, const CommandLine& command) {
  const auto& [word, rest] = command;
  if (word == "/edit") return Edit(chat, rest);
  if (word == "/forget") return Forget(chat, rest);
  if (word == "/undo" && rest == "--forget") return ForgetLast(chat);
  if (word == "/switch") {
    if (rest.empty()) {
      return Fail(Code::kInvalidArgument, "/switch needs the name of a conversation: {}",
                  fmt::join(chat.Names(), ", "));
    }
    KV_TRY(chat.Switch(rest));
    fmt::print("(conversation {})\n", rest);
    return {};
  }
  if (word == "/fork") {
    const std::string name = rest.empty() ? chat.NextName() : std::string(rest);
    const std::string before = chat.Names().front();
    KV_TRY(chat.Fork(name));
    fmt::print("(conversation {}, a copy of {}; /switch {} goes back)\n", name, before, before);
    return {};
  }
  if (word == "/system") {
    if (rest.empty()) return ShowSystem(chat);
    KV_TRY(chat.SetSystem(std::string(rest)));
    fmt::print("(the next answer reads it, and what comes after it is computed again)\n");
    return {};
  }
  if (word != "/?" && std::ranges::find(kCommands, word) == std::end(kCommands)) {
    return tl::unexpected(UnknownCommand(word));
  }
  if (word == "/undo" && !rest.empty()) {
    return Fail(Code::kInvalidArgument,
                "/undo takes nothing after it, or --forget, and \"{}\" was there", rest);
  }
  KV_TRY(NeedsNothing(command));
  if (word == "/undo") {
    KV_ASSIGN(const std::string text, chat.Undo());
    fmt::print("(taken back: {})\n", Short(text));
  } else if (word == "/list") {
    return List(chat);
  } else if (word == "/receipt") {
    if (!chat.receipt())
      return Fail(Code::kInvalidArgument, "nothing was answered yet; ask something first");
    fmt::print("{}\n", ReceiptJson(*chat.receipt()).dump(2));
  } else if (word == "/reset") {
    KV_ASSIGN(const std::optional<std::string> old, chat.Reset());
    fmt::print("(the conversation starts anew; what the cache holds stays{})\n",
               old ? "; the old one is " + *old : "");
  } else {
    fmt::print("{}", kHelp);
  }
  return {};
}

// Returns what to tell of an error: of a conversation that has become too long also what helps
// here.
std::string TextOf(const Error& error) {
  if (error.field == "index") return error.message;  // no word of the API's
  if (error.field != "max_context" || !error.excess) return error.text();
  const bool is_least = error.excess->is_least;
  return fmt::format(
      "the conversation has {}{} tokens, which with 1 to generate do not fit the context of {}; "
      "/undo takes back your last message, /edit N TEXT makes message N shorter, /reset begins "
      "anew",
      is_least ? "more than " : "", error.excess->prompt_tokens - (is_least ? 1 : 0),
      error.excess->ctx_size);
}

// Reads and answers until the input ends. Reports what fails; without a terminal also in the exit
// status.
Result<int> Talk(ChatSession& chat) {
  LineReader reader(kCommands);
  const bool terminal = isatty(STDIN_FILENO) == 1;
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
    const CommandLine command = Split(line);
    if (end == LineReader::End::kInput || IsExit(command.word)) break;
    if (!terminal) fmt::print("{}\n", line);  // so that a transcript shows both sides
    if (line.empty()) continue;
    if (const size_t bad = FirstInvalidUtf8(line); bad != line.size()) {
      std::fflush(stdout);
      fmt::print(stderr, "kvasir chat: byte {} of the line is not UTF-8; it was not sent\n", bad);
      status = terminal ? kExitDone : kExitWrongInput;
      continue;
    }
    const Status done = line.front() == '/' ? Obey(chat, command) : chat.Say(line);
    if (done) continue;
    std::fflush(stdout);
    fmt::print(stderr, "kvasir chat: {}\n", TextOf(done.error()));
    // a conversation that does not fit the context is the caller's, not the machine's, fault.
    const bool is_wrong = done.error().field == "max_context";
    status = terminal ? kExitDone : is_wrong ? kExitWrongInput : ExitStatus(done.error().code);
  }
  fmt::print("\n");
  return status;
}

// Opens the file of sessions in the disk's folder; null without a disk. A chat that resumes nothing
// goes on without it.
Result<std::shared_ptr<SessionFile>> OpenFile(Engine& engine, bool is_needed) {
  if (!engine.DiskStats() && is_needed) {
    return Fail(
        Code::kUnavailable,
        "--resume: the cache is not kept on a disk here; name a folder with --disk DIR, and "
        "leave --cache out");
  }
  if (!engine.DiskStats()) return nullptr;
  auto file = SessionFile::Open(SessionFileOptionsOf(engine));
  if (file) return std::shared_ptr<SessionFile>(std::move(*file));
  if (is_needed) return tl::unexpected(file.error());
  fmt::print("(the conversation ends with this chat: {})\n", file.error().message);
  return nullptr;
}

// Returns the session that --resume names: the last one used, unless it gives an id.
Result<std::string> IdToResume(const Engine& engine, SessionFile& file, const std::string& given,
                               std::string_view tenant) {
  if (!given.empty()) return given;
  KV_ASSIGN(const std::vector<SessionFile::Row> rows, file.List());
  const SessionFile::Row* last = nullptr;
  for (const SessionFile::Row& row : rows) {
    const bool is_session = KindOfId(row.id) == SessionKind::kSession;
    if (!is_session || row.owner != SessionOwnerOf(tenant)) continue;
    if (last == nullptr || row.used_s >= last->used_s) last = &row;
  }
  if (last != nullptr) return last->id;
  return Fail(
      Code::kNotFound,
      "--resume: {} has no conversation of 'kvasir chat' or of a server without API keys; leave "
      "the flag out to begin one ('kvasir sessions list' shows what a folder has)",
      engine.DiskStats()->folder);
}

Status SayResumed(const ChatSession& chat) {
  KV_ASSIGN(const SessionStore::Entry entry, chat.Read());
  const std::vector<std::string> names = chat.Names();
  fmt::print("({}{}: {}; /list shows them{})\n", names.size() > 1 ? names.front() + ", " : "",
             chat.id(), CountText(entry.num_messages, "message"),
             entry.state->identity_changed
                 ? "; another model or KV format read them, so the next answer computes "
                   "all of it again"
                 : "");
  return {};
}

Status SayKept(ChatSession& chat, const std::optional<std::string>& disk) {
  KV_ASSIGN(const std::vector<ChatSession::Branch> kept, chat.End());
  for (const ChatSession::Branch& branch : kept) {
    fmt::print("({} is kept: kvasir chat{} --resume {})\n", branch.name,
               disk ? " --disk " + *disk : "", branch.id);
  }
  return {};
}

Result<int> RunChat(const Args& given) {
  KV_ASSIGN(const Args args, WithModelOperand(given));
  const std::optional<std::string> resume = args.Text("resume");
  if (resume && !resume->empty() && !IsSessionId(*resume)) {
    return Fail(Code::kInvalidArgument,
                "--resume: '{}' is not the id of a session; 'kvasir sessions list' shows them",
                *resume);
  }
  KV_ASSIGN(const EngineOptions options,
            EngineOptionsOf(args, resume ? DiskDefault::kCacheFolder : DiskDefault::kNone));
  if (resume && !options.disk) {
    return Fail(Code::kInvalidArgument, "--resume: needs a disk; give --disk DIR, or leave it out");
  }
  GenerateRequest request;
  KV_TRY(ReadSampling(args, request));
  KV_ASSIGN(const TemplateChoice choice, ChooseTemplate(args));
  ExitOnInterrupt();
  KV_ASSIGN(const std::unique_ptr<Engine> engine, LoadEngine(options));
  if (engine->card().decoder_start) {
    return Fail(Code::kInvalidArgument,
                "--model: {} is an encoder-decoder, which does not chat; use 'kvasir translate'",
                engine->card().id);
  }
  TakeDefaults(args, engine->card().sampling, request.sampling);
  if (const std::optional<std::string> text = engine->card().sampling.Text()) {
    fmt::print(
        "(generation_config.json: {}; flags come first, --generation-config none is "
        "without it)\n",
        *text);
  }
  // A model without a tokenizer or template is refused before the first line is read.
  KV_TRY(
      EncodeChat(*engine, {{"user", "?"}}, choice.now_unix_s, choice.own.get(), choice.variables));
  ChatStart start{.system = args.Text("system"), .file = {}, .resume = {}};
  KV_ASSIGN(start.file, OpenFile(*engine, resume.has_value()));
  if (resume) {
    KV_ASSIGN(start.resume, IdToResume(*engine, *start.file, *resume, request.tenant));
  }
  KV_ASSIGN(ChatSession chat,
            ChatSession::Begin(*engine, choice, std::move(request), std::move(start)));
  if (resume) KV_TRY(SayResumed(chat));
  KV_ASSIGN(const int status, Talk(chat));
  KV_TRY(SayKept(chat, args.Text("disk")));
  return status;
}

}  // namespace

Command ChatCommand() {
  return Grouped(
      {"chat",
       "a chat in the terminal; after each turn one line says what came from the cache",
       "chat --system \"You are Kvasir, a small assistant that remembers.\"",
       Join({{{"system", "TEXT", "the system message"},
              {"resume", "[ID]",
               "goes on with a session that the disk keeps (default: the one last used); without "
               "--disk, of kv in the cache folder",
               FlagKind::kOptional}},
             AnswerFlags()}),
       RunChat,
       "kvasir chat MODEL takes a path or a name that 'kvasir list' shows. In the chat: /help "
       "lists "
       "its commands: messages are edited, taken back, forked and "
       "forgotten; /exit or Ctrl-D leaves, Ctrl-C stops an answer. With --disk DIR the "
       "conversation "
       "stays in the folder, encrypted; its id is printed at the end, and 'kvasir sessions list' "
       "shows it.",
       1,
       {},
       {},
       "[MODEL]"},
      "model system resume disk max-tokens temperature");
}

}  // namespace kvasir::cli
