// TranslatedChat: a request of another protocol, as a chat completion has it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "api/model_view.h"
#include "api/openai_request.h"
#include "chat/template_form.h"
#include "http/json_body.h"
#include "kvasir/status.h"

namespace kvasir {

// What a request calls the parts of the chat that it has become.
struct ChatNames {
  struct Message {
    std::string path;                 // "messages[3]"
    std::string thought;              // "messages[3].content[0]"
    std::vector<std::string> calls;   // "messages[3].content[1]"
    std::optional<size_t> kept = {};  // which message of a stored response it is
  };
  struct Field {
    std::string_view ours, theirs;
  };
  std::vector<Message> messages;
  std::vector<Field> fields;  // those that have another name, and what they begin with

  // Returns the request's name of a field of the chat, which an error or `ignored` has.
  std::string Of(std::string_view field) const;
};

// A message of another protocol.
struct TranslatedMessage {
  std::string role = "";  // of a chat completion
  std::string text = "", thought = "";
  std::vector<JsonValue> calls = {};  // as `tool_calls` have them
  std::string call_id = "";           // of the role tool
  JsonValue mark = {};                // as api/cache_marks.h has it; null: it has none
  JsonValue whole = {};               // of a stored response: all of it; else null
  ChatNames::Message name = {};

  // Adds a text after a line end.
  void AddText(std::string_view more);
};

// Makes the messages of a chat. What the template refuses is joined: a system message that comes
// late to the user's message before it, between <system> marks, and neighbours of one role. A late
// system message never moves to the head: what was cached before it would be lost.
class ChatBuilder {
 public:
  // `form`: of the template; it and `tree` must outlive this.
  ChatBuilder(const TemplateForm& form, JsonTree* tree) : form_(form), tree_(tree) {}

  // Returns which message of the chat it is now.
  size_t Add(TranslatedMessage message);
  // Adds a message of a stored response, as it is, unless it must be joined to the one before it.
  // `whole`: of a chat completion.
  void AddKept(const JsonValue& whole, ChatNames::Message name);
  // Returns a call of `name`; `arguments` is an object.
  JsonValue Call(std::string_view id, std::string_view name, const JsonValue& arguments) const;
  // Marks a message, which was added: `ttl` as api/cache_marks.h has it.
  void Mark(size_t index, std::string_view ttl) {
    messages_[index].mark = tree_->Object({{"ttl", tree_->String(ttl)}});
  }
  size_t size() const { return messages_.size(); }
  bool is_last(std::string_view role) const {
    return !messages_.empty() && messages_.back().role == role;
  }
  // Returns `messages`, and moves their names to *names.
  JsonValue End(ChatNames* names);

 private:
  const TemplateForm& form_;
  JsonTree* const tree_;
  std::vector<TranslatedMessage> messages_;
};

struct TranslatedChat {
  enum class Kind : uint8_t { kChat, kText, kInfill };
  Kind kind = Kind::kChat;
  JsonTree tree;
  JsonValue fields;  // of a chat completion, of a completion, or of /infill
  ChatNames names;
  std::vector<std::string> ignored;   // by the request's names
  std::vector<CacheMark> marks = {};  // of messages that have them no more in `fields`
};

// Fields that a chat completion has by the same name: those of all requests that have Kvasir's
// additions, and those that other protocols than Ollama's have beside them.
inline constexpr std::string_view kOwnFields[] = {
    "cache_salt", "cache_prompt", "cache",   "priority",   "timeout_ms",
    "lora",       "speculative",  "id_slot", "drop_lines", "move_lines"};
inline constexpr std::string_view kSameFields[] = {"model",
                                                   "stream",
                                                   "temperature",
                                                   "top_p",
                                                   "top_k",
                                                   "min_p",
                                                   "seed",
                                                   "repetition_penalty",
                                                   "ignore_eos",
                                                   "presence_penalty",
                                                   "frequency_penalty",
                                                   "min_tokens",
                                                   "chat_template_name",
                                                   "speculative.n_max"};
// Adds those of the fields that are there.
void CopyFields(JsonFields& from, std::span<const std::string_view> names,
                std::vector<JsonValue::Member>* to);

// Returns a text that must be there.
Result<std::string_view> NeededText(JsonFields& fields, std::string_view name);
// Returns the tool of a chat completion that a function is: its `name`, `description`, `strict`,
// and the schema of its arguments, by that field's name. Other fields stay unread.
Result<JsonValue> ReadFunction(JsonFields& function, std::string_view schema, JsonTree* tree);

// Returns the items of `tools`; without one, none. kInvalidArgument: it is not a list.
Result<std::span<const JsonValue>> ToolsOf(JsonFields& fields);

// Returns the form of the template that the chat is rendered with, and a plain one for a model
// without a template. kInvalidArgument: `chat_template_name` is unknown.
Result<TemplateForm> FormFor(JsonFields& fields, const ModelView& model, bool has_tools);

// Reads the chat as ReadChat does, or a text as it is; errors and `ignored` have the request's
// names. Errors of a prompt that does not fit the context have `excess`.
Result<OpenAiCall> ReadTranslated(TranslatedChat& chat, const ModelView& model);
// Gives the result of reading the chat in another way the request's names.
Result<OpenAiCall> WithItsNames(Result<OpenAiCall> call, const TranslatedChat& chat);
// Counts the tokens of its prompt.
Result<size_t> CountTranslated(TranslatedChat& chat, const ModelView& model);

}  // namespace kvasir
