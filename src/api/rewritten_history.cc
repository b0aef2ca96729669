#include "api/rewritten_history.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir {
namespace {

// Returns the chat as it was when message `answer` was generated.
JsonValue BeforeAnswer(const JsonValue& chat, size_t answer, JsonTree* tree) {
  std::vector<JsonValue::Member> members;
  for (const JsonValue::Member& member : chat.members()) {
    if (member.key == "add_generation_prompt" || member.key == "continue_final_message") continue;
    const bool is_messages = member.key == "messages";
    members.push_back(
        {member.key, is_messages ? tree->Array(member.value.items().first(answer)) : member.value});
  }
  return tree->Object(std::move(members));
}

bool IsAnswer(const JsonValue& message) {
  const JsonValue* role = message.Find("role");
  return role && role->is_string() && role->text() == "assistant";
}

// Answers in which templates look for thinking, in the ways of several models.
constexpr std::string_view kProbeAnswers[] = {
    "Fine.",
    "<think>\\nShort.\\n</think>\\n\\nFine.",
    "Short.\\n</think>\\n\\nFine.",
    "[THINK]Short.[/THINK]Fine.",
    "<|channel|>analysis<|message|>Short.<|end|><|start|>assistant<|channel|>final<|message|>Fine.",
};
constexpr std::string_view kProbeTools =
    R"("tools":[{"type":"function","function":{"name":"look","description":"Looks.",)"
    R"("parameters":{"type":"object","properties":{"at":{"type":"string"}}}}}],)";

std::string ProbeChat(bool has_system, bool has_tools, std::string_view answer) {
  std::string chat = "{";
  if (has_tools) chat += kProbeTools;
  chat += "\"messages\":[";
  if (has_system) chat += R"({"role":"system","content":"Be kind."},)";
  for (const char* question : {"Hello", "And you?"}) {
    chat += std::string(R"({"role":"user","content":")") + question + "\"},";
    chat += R"({"role":"assistant","content":")" + std::string(answer) + "\"},";
  }
  return chat + R"({"role":"user","content":"Bye"}]})";
}

}  // namespace

std::optional<size_t> FindRewritten(const JsonValue& chat, size_t answer, const RenderedChat& whole,
                                    const ModelView& model, JsonTree* tree,
                                    std::string_view written) {
  const JsonValue before = BeforeAnswer(chat, answer, tree);
  JsonFields fields(before);
  const auto asked = RenderMessages(fields, tree, model);
  if (!asked) return std::nullopt;
  MessageRoom room{.tree = tree};
  const auto read = ReadMessage(chat.Find("messages")->items()[answer], answer, model, &room);
  if (!read) return std::nullopt;
  std::string generated = asked->text;
  generated += written.empty() ? read->Find("content")->text() : written;
  const auto at =
      static_cast<size_t>(std::ranges::mismatch(generated, whole.text).in1 - generated.begin());
  if (at == generated.size()) return std::nullopt;
  const auto message = std::ranges::upper_bound(whole.message_end, at);
  return static_cast<size_t>(message - whole.message_end.begin());
}

bool IsRewrittenFrom(const JsonValue& chat, size_t message, const ModelView& model, JsonTree* tree,
                     std::span<const std::string_view> written) {
  const auto messages = chat.Find("messages")->items();
  // What follows an answer's beginning is never written before it.
  const size_t first = std::max<size_t>(message, 1);
  if (first >= messages.size() || std::ranges::none_of(messages.subspan(first), IsAnswer)) {
    return false;
  }
  JsonFields fields(chat);
  const auto whole = RenderMessages(fields, tree, model);
  if (!whole) return false;
  size_t tried = 0;
  for (size_t i = messages.size(); i-- > first && tried < kMostTurns;) {
    if (!IsAnswer(messages[i])) continue;
    ++tried;
    const std::string_view text = i < written.size() ? written[i] : std::string_view();
    if (FindRewritten(chat, i, *whole, model, tree, text) == message) return true;
  }
  return false;
}

std::optional<bool> IsPrefixStable(ModelView model) {
  if (model.chat_template == nullptr) return std::nullopt;
  model.template_steps = kTriedSteps;
  std::optional<bool> stable;
  for (const std::string_view answer : kProbeAnswers) {
    for (const bool has_system : {false, true}) {
      for (const bool has_tools : {false, true}) {
        auto body = ParseBody(ProbeChat(has_system, has_tools, answer));
        if (!body) continue;
        JsonFields fields(body->fields);
        const auto whole = RenderMessages(fields, &body->tree, model);
        if (!whole) continue;
        stable = stable.value_or(true);
        const auto messages = body->fields.Find("messages")->items();
        for (size_t i = 1; i < messages.size(); ++i) {
          if (!IsAnswer(messages[i])) continue;
          if (FindRewritten(body->fields, i, *whole, model, &body->tree)) return false;
        }
      }
    }
  }
  return stable;
}

}  // namespace kvasir
