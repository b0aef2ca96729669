// Chat templates: messages to the text that a model was trained on.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvasir/status.h"

namespace kvasir {

// Rendered text, and which bytes of it users wrote. Bytes outside `literal` came from the template.
struct RenderedChat {
  std::string text;
  std::vector<std::pair<size_t, size_t>> literal;  // ascending byte ranges, for EncodeOptions
  // message_end[i]: byte offset where message i's contribution ends (the first byte of the next
  // message's), ascending; text after the last one is the generation prompt.
  std::vector<size_t> message_end;
};

struct ChatRenderOptions {
  bool add_generation_prompt = true;
  std::string bos_token, eos_token;
};

// A parsed template. Immutable; thread-safe.
class ChatTemplate {
 public:
  // kInvalidArgument with line and column on a syntax error; kUnsupported names a construct that the
  // interpreter does not know.
  static Result<std::unique_ptr<ChatTemplate>> Parse(std::string_view source);
  virtual ~ChatTemplate() = default;

  // messages: array of objects {role, content, ...} (content: string); tools: array or null;
  // variables: more template variables (chat_template_kwargs), object or null. Errors:
  // kInvalidArgument with the template's raise_exception message, or what went wrong.
  virtual Result<RenderedChat> Render(const nlohmann::json& messages, const nlohmann::json& tools,
                                      const nlohmann::json& variables,
                                      const ChatRenderOptions& options) const = 0;
};

}  // namespace kvasir
