// ResponsesItems: the input of /v1/responses, which is a list of items.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "api/model_view.h"
#include "api/translated_chat.h"
#include "http/json_body.h"
#include "kvasir/session.h"
#include "kvasir/status.h"

namespace kvasir {

// Reads items into the messages of a chat. Those of one turn of the assistant (thoughts, texts,
// calls) are one message. One thread.
class ResponsesItems {
 public:
  // Adds what items say and the chat does not to the unread fields of `body`. The others must
  // outlive this.
  ResponsesItems(const TemplateForm& form, const ModelView& model, JsonTree* tree, JsonFields* body)
      : builder_(form, tree), model_(model), body_(*body), tree_(tree) {}

  // Adds what a stored response says and answers, without its instructions. After the instructions
  // of this request, before its input.
  Status AddPrevious(const SessionState& previous);
  // Returns the text.
  Result<std::string> ReadInstructions(const JsonValue& instructions);
  // Reads a text, or items. Null: the field is absent.
  Status ReadInput(const JsonValue* input);
  JsonValue End(ChatNames* names);

 private:
  Status ReadItem(const JsonValue& item, const std::string& path);
  Status ReadMessage(JsonFields& item, const std::string& path);
  Status ReadCall(JsonFields& item, const std::string& path);
  Status ReadResult(JsonFields& item, const std::string& path);
  Status ReadThought(JsonFields& item, const std::string& path);
  // Adds a text, or the texts of parts, and the mark that is found in them.
  Status ReadContent(const JsonValue* content, const std::string& path, TranslatedMessage* to);
  Status ReadMark(JsonFields& fields, const std::string& path, TranslatedMessage* to);
  TranslatedMessage& Turn(const std::string& path);
  // Adds a message of another role than the assistant's and tools'.
  void Add(std::string_view role, TranslatedMessage message, const std::string& path);
  void EndTurn();
  void LeaveOut(const std::string& path);

  ChatBuilder builder_;
  const ModelView& model_;
  JsonFields& body_;
  JsonTree* const tree_;
  std::optional<TranslatedMessage> turn_;     // of the assistant, while its items come
  std::set<std::string, std::less<>> calls_;  // ids
};

}  // namespace kvasir
