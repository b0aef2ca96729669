// From the messages of a chat to its ids: a chat of 100 turns with one more question, with the
// pieces of the turns before kept, and without. One JSON line per template. Exit status 1 when the
// ids of the two differ, or a template fails (a missed target is only shown, because machines
// differ).
//
// usage: chat_bench [FOLDER [TEMPLATE_FILE]]   FOLDER has a tokenizer.json and
// tokenizer_config.json; TEMPLATE_FILE: Jinja, or JSON that has a chat_template (default: those of
// models/kvasir-demo)
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "api/chat_prompt.h"
#include "api/session_prompt.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/mapped_file.h"
#include "base/random.h"
#include "source_paths.h"

namespace kvasir {
namespace {

constexpr size_t kTurns = 100, kQuestionWords = 40, kAnswerWords = 200, kRounds = 41;
constexpr double kTargetMs = 2, kTargetRatio = 10;

// Writes words as prose has them: short ones often, and no text twice.
std::string Prose(Random& random, size_t words) {
  static constexpr const char* kSyllables[] = {"ta",  "ri", "o", "men", "the", "ing", "a",   "lo",
                                               "ver", "st", "e", "ca",  "un",  "der", "pro", "i"};
  std::string text;
  for (size_t word = 0; word < words; ++word) {
    if (word > 0) text += word % 12 == 0 ? ". " : " ";
    for (size_t i = 1 + random.Below(3); i > 0; --i) text += kSyllables[random.Below(16)];
  }
  return text + ".";
}

struct Chat {
  std::vector<std::string> contents;  // of the user and the assistant in turn
};

// Makes a prompt as a request does: of messages that are JSON values, which the body's parser made.
Result<ChatPrompt> PromptOf(const Chat& chat, const ModelView& model, double* render_ms) {
  JsonTree tree;
  std::vector<JsonValue> messages;
  for (size_t i = 0; i < chat.contents.size(); ++i) {
    messages.push_back(tree.Object({{"role", tree.String(i % 2 == 0 ? "user" : "assistant")},
                                    {"content", tree.String(chat.contents[i])}}));
  }
  const JsonValue body = tree.Object({{"messages", tree.Array(messages)}});
  const uint64_t begin_ns = MonotonicNs();
  JsonFields fields(body);
  KV_ASSIGN(const RenderedChat rendered, RenderMessages(fields, &tree, model));
  *render_ms = static_cast<double>(MonotonicNs() - begin_ns) * 1e-6;
  return EncodeChat(rendered, model);
}

// Makes the same chat as a session, whose answers stand in it with the ids that were generated.
Result<SessionState> SessionOf(const Chat& chat, const ModelView& model, SessionStore& store) {
  SessionSetup setup;
  setup.max_context = model.ctx_size;
  SessionState empty;
  KV_ASSIGN(empty.setup, store.Keep(std::move(setup)));
  std::vector<SessionMessage> messages;
  for (size_t i = 0; i < chat.contents.size(); ++i) {
    SessionMessage& message = messages.emplace_back();
    message.role = i % 2 == 0 ? "user" : "assistant";
    message.content = chat.contents[i];
    message.generated = i % 2 == 1;
    if (!message.generated) continue;
    KV_ASSIGN(message.ids, model.tokenizer->Encode(message.content, {.add_special = false}));
    message.ids_bytes = message.content.size();
    message.ids_read_back =
        model.tokenizer->HowReads(message.ids, message.content) == ReadsBack::kAnywhere;
  }
  return Append(store, empty, std::move(messages));
}

struct Times {
  std::vector<double> all_ms, render_ms;
  std::vector<TokenId> ids;
};

Status Measure(const Chat& chat, const ModelView& model, Times* times) {
  double render_ms = 0;
  const uint64_t begin_ns = MonotonicNs();
  KV_ASSIGN(ChatPrompt prompt, PromptOf(chat, model, &render_ms));
  times->all_ms.push_back(static_cast<double>(MonotonicNs() - begin_ns) * 1e-6);
  times->render_ms.push_back(render_ms);
  times->ids = std::move(prompt.ids);
  return {};
}

double Median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + static_cast<ptrdiff_t>(values.size() / 2));
  return values[values.size() / 2];
}

Status Compare(const std::string& name, const ModelView& plain) {
  PieceStore store(uint64_t{16} << 20, MonotonicNs());
  Random random(19);
  Chat chat;
  for (size_t turn = 0; turn < kTurns; ++turn) {
    chat.contents.push_back(Prose(random, kQuestionWords));
    chat.contents.push_back(Prose(random, kAnswerWords));
  }
  Times with, without;
  std::vector<double> session_ms;
  SessionStore sessions({.memory_bytes = uint64_t{1} << 30});
  for (size_t round = 0; round < kRounds; ++round) {
    ModelView keeping = plain;
    keeping.pieces = store.SpaceOf("");
    double ms = 0;
    KV_TRY(PromptOf(chat, keeping, &ms));  // the turns before, as the request before read them
    Chat next = chat;
    next.contents.push_back(Prose(random, kQuestionWords));
    KV_TRY(Measure(next, keeping, &with));
    KV_TRY(Measure(next, plain, &without));
    KV_ASSIGN(const SessionState session, SessionOf(next, plain, sessions));
    const uint64_t begin_ns = MonotonicNs();
    KV_ASSIGN(const SessionPrompt prompt, PromptOf(session, keeping));
    session_ms.push_back(static_cast<double>(MonotonicNs() - begin_ns) * 1e-6);
    if (prompt.chat.ids != with.ids)
      return Fail(Code::kCorruption, "{}: a session's ids differ", name);
    if (with.ids != without.ids) return Fail(Code::kCorruption, "{}: the ids differ", name);
  }
  const double with_ms = Median(with.all_ms), without_ms = Median(without.all_ms);
  fmt::print(
      "{{\"bench\":\"chat\",\"template\":\"{}\",\"turns\":{},\"tokens\":{},\"kept_ms\":{:.3f},"
      "\"render_ms\":{:.3f},\"target_ms\":{},\"not_kept_ms\":{:.3f},\"ratio\":{:.1f},"
      "\"session_ms\":{:.3f},\"target_ratio\":{}}}\n",
      name, kTurns, with.ids.size(), with_ms, Median(with.render_ms), kTargetMs, without_ms,
      without_ms / with_ms, Median(session_ms), kTargetRatio);
  return {};
}

Status Run(const std::filesystem::path& folder, const std::filesystem::path& template_file) {
  constexpr uint64_t kMost = uint64_t{64} << 20;
  KV_ASSIGN(const std::string json, ReadTextFile(folder / "tokenizer.json", kMost));
  const auto config = ReadTextFile(folder / "tokenizer_config.json", kMost);
  KV_ASSIGN(const auto tokenizer, Tokenizer::Parse(json, config.value_or("")));
  KV_ASSIGN(std::string source, ReadTextFile(template_file, kMost));
  const auto parsed = nlohmann::json::parse(source, nullptr, false);
  if (parsed.is_object()) source = parsed.value("chat_template", "");
  KV_ASSIGN(const auto chat_template, ChatTemplate::Parse(source));
  ModelView model;
  model.tokenizer = tokenizer.get();
  model.chat_template = chat_template.get();
  model.ctx_size = 1 << 20;
  return Compare(
      folder.filename().string() + " / " + template_file.parent_path().filename().string(), model);
}

}  // namespace
}  // namespace kvasir

int main(int argc, char** argv) {
  const std::filesystem::path folder = argc > 1 ? argv[1] : KVASIR_SOURCE_DIR "/models/kvasir-demo";
  const auto ran =
      kvasir::Run(folder, argc > 2 ? argv[2] : (folder / "tokenizer_config.json").string());
  if (ran) return 0;
  fmt::print(stderr, "chat_bench: {}\n", ran.error().text());
  return 1;
}
