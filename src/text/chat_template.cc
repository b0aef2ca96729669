#include "text/chat_template.h"

#include <algorithm>

#include "base/clock.h"
#include "base/result.h"
#include "jinja/input.h"
#include "jinja/interpreter.h"
#include "jinja/lexer.h"
#include "jinja/parser.h"

namespace kvasir {
namespace {

using jinja::Text;
using jinja::Value;

const std::vector<const char*> kProbes[] = {{"user", "assistant", "user"},
                                            {"system", "user", "assistant", "user"},
                                            {"developer", "user"},
                                            {"user", "assistant", "tool", "assistant", "user"}};

std::vector<std::pair<size_t, size_t>> LiteralRanges(const Text& text) {
  std::vector<std::pair<size_t, size_t>> out;
  size_t begin = 0;
  for (const Text::Run& run : text.runs()) {
    if (run.origin.input && !out.empty() && out.back().second == begin) {
      out.back().second = run.end;
    } else if (run.origin.input) {
      out.emplace_back(begin, run.end);
    }
    begin = run.end;
  }
  return out;
}

// Where each message ends, by the rule at ChatTemplate. O(runs + messages).
std::vector<size_t> MessageEnds(const Text& text, size_t num_messages) {
  std::vector<size_t> first_literal_end(num_messages, 0);
  size_t end_of_messages = 0;
  for (const Text::Run& run : text.runs()) {
    if (!run.origin.message || *run.origin.message >= num_messages) continue;
    size_t& end = first_literal_end[*run.origin.message];
    if (run.origin.input && end == 0) end = run.end;
    end_of_messages = run.end;
  }
  std::vector<size_t> ends;
  size_t at = 0, next_run = 0, run_begin = 0;
  for (size_t i = 0; i + 1 < num_messages; ++i) {
    at = std::max(at, first_literal_end[i]);
    // Runs that end before `at`, or belong to no message after i, are not where message i+1 begins.
    while (next_run < text.runs().size()) {
      const Text::Run& run = text.runs()[next_run];
      if (run.end > at && run.origin.message && *run.origin.message > i) break;
      run_begin = run.end;
      ++next_run;
    }
    const bool found = next_run < text.runs().size();
    at = found ? std::max(at, run_begin) : std::max(at, end_of_messages);
    ends.push_back(at);
  }
  if (num_messages > 0) ends.push_back(std::max(at, end_of_messages));
  return ends;
}

class JinjaChatTemplate final : public ChatTemplate {
 public:
  JinjaChatTemplate(std::string source, std::vector<jinja::NodePtr> body)
      : source_(std::move(source)), body_(std::move(body)) {
    written_ = std::make_shared<const std::string>(source_ + Probe());
  }

  const std::string& source() const override { return source_; }

  Result<RenderedChat> Render(const JsonValue& messages, const JsonValue& tools,
                              const JsonValue& variables,
                              const ChatRenderOptions& options) const override {
    if (!messages.is_array()) return Fail(Code::kInvalidArgument, "messages must be an array");
    if (!variables.is_null() && !variables.is_object()) {
      return Fail(Code::kInvalidArgument, "chat template variables must be an object");
    }
    jinja::Variables names;
    if (variables.is_object()) {
      for (const auto& [key, value] : variables.members()) {
        KV_ASSIGN(names[std::string(key)], jinja::FromJson(value));
      }
    }
    // A caller's variables replace what the model has, never the chat itself.
    names.emplace("documents", Value(jinja::None{}));
    if (!options.bos_token.empty()) {
      names.emplace("bos_token", jinja::FromString(options.bos_token));
    }
    if (!options.eos_token.empty()) {
      names.emplace("eos_token", jinja::FromString(options.eos_token));
    }
    KV_ASSIGN(names["messages"], jinja::FromMessages(messages));
    KV_ASSIGN(names["tools"], jinja::FromJson(tools));
    names["add_generation_prompt"] = Value(options.add_generation_prompt);
    jinja::Interpreter interpreter(source_, jinja::Limits::For(names),
                                   options.now_unix_s ? options.now_unix_s : UnixS());
    KV_ASSIGN(Text text, interpreter.Run(body_, std::move(names)));
    RenderedChat chat{"", LiteralRanges(text), MessageEnds(text, messages.size()), written_};
    chat.text = std::move(text).TakeBytes();
    return chat;
  }

 private:
  // What the template itself writes in chats of each role: marks that it makes out of roles, as
  // '<|' + role + '|>', are not in its source. Chats that it refuses write nothing.
  std::string Probe() const {
    std::string written;
    for (const auto& roles : kProbes) {
      JsonTree tree;
      std::vector<JsonValue> messages;
      for (const char* role : roles) {
        messages.push_back(
            tree.Object({{"role", tree.String(role)}, {"content", tree.String("x")}}));
      }
      const auto chat = Render(tree.Array(messages), {}, {},
                               {.bos_token = "x", .eos_token = "x", .now_unix_s = 1});
      if (!chat) continue;
      size_t at = 0;
      for (const auto& [begin, end] : chat->literal) {
        written.append("\n").append(chat->text, at, begin - at);
        at = end;
      }
      written.append("\n").append(chat->text, at);
    }
    return written;
  }

  std::string source_;
  std::vector<jinja::NodePtr> body_;
  std::shared_ptr<const std::string> written_;
};

}  // namespace

std::string WithToolUse(std::string_view plain, std::string_view tool_use) {
  // A template alone loses the line end at its end, one behind a block loses it at its begin, and
  // a block loses the spaces before it where nothing else is on its line.
  const auto body = [](std::string_view source) {
    return "\n" + jinja::NormalizeNewlines(source) + "{{ '' }}";
  };
  return "{% if tools is not none %}" + body(tool_use) + "{% else %}" + body(plain) + "{% endif %}";
}

Result<std::unique_ptr<ChatTemplate>> ChatTemplate::Parse(std::string_view source) {
  std::string normalized = jinja::NormalizeNewlines(source);
  KV_ASSIGN(std::vector<jinja::NodePtr> body, jinja::ParseTemplate(normalized));
  return std::make_unique<JinjaChatTemplate>(std::move(normalized), std::move(body));
}

}  // namespace kvasir
