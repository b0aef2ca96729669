// AnthropicBlocks: the messages of /v1/messages, which are lists of blocks.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "api/anthropic_messages.h"
#include "api/translated_chat.h"
#include "http/json_body.h"
#include "kvasir/status.h"

namespace kvasir {

// Reads `cache_control`, a mark of what to keep. Returns its time, "5m" or "1h"; "" without a mark.
Result<std::string> ReadMark(JsonFields& fields);

// Reads a body's messages into those of a chat. One thread.
class AnthropicBlocks {
 public:
  // Adds what blocks say and the chat does not to the unread fields of `body`. `form`, `tree` and
  // `body` must outlive this.
  AnthropicBlocks(const TemplateForm& form, JsonTree* tree, JsonFields* body)
      : builder_(form, tree), body_(*body) {}

  // Reads `system`, without the blocks that are the gateway's.
  Status ReadSystem(const JsonValue& system);
  Status ReadMessages(const JsonValue* messages);
  size_t num_messages() const { return builder_.size(); }
  // Marks a message; REQUIRES: there is one.
  void Mark(size_t index, std::string_view ttl) { builder_.Mark(index, ttl); }
  JsonValue End(ChatNames* names) { return builder_.End(names); }

 private:
  // One message while its blocks are read.
  struct Open {
    TranslatedMessage message;
    std::vector<TranslatedMessage> results;  // of tools, before the text
    std::string mark;                        // as ReadMark's
    bool has_blocks = false;                 // beside results
  };

  Status ReadMessage(const JsonValue& message, const std::string& path);
  Status ReadBlock(const JsonValue& block, const std::string& path, Open* open);
  Status ReadCall(JsonFields& block, const std::string& path, Open* open);
  Status ReadResult(JsonFields& block, const std::string& path, Open* open);
  // Returns the texts of a content that may have nothing else.
  Result<std::string> TextOfContent(const JsonValue& content, const std::string& path);
  void Add(Open open);
  void LeaveOut(const std::string& path);

  ChatBuilder builder_;
  JsonFields& body_;
  std::set<std::string, std::less<>> calls_;  // ids
};

}  // namespace kvasir
