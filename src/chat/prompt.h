// Prompts of a model: convert raw text or a conversation to token ids.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json_tree.h"
#include "kvasir/engine.h"

namespace kvasir {

// kUnsupported when the model reads no text: says why, and what to give `instead`.
Result<const Tokenizer*> TokenizerOf(const Engine& engine, std::string_view instead);

// Returns the ids of raw text; special tokens in it are parsed, and BOS is added as the tokenizer
// says. kUnsupported when the model has no tokenizer.
Result<std::vector<TokenId>> EncodePrompt(const Engine& engine, std::string_view text);

struct ChatMessage {
  std::string role, content;
};
struct EncodedChat {
  std::vector<TokenId> ids;
  bool clock_in_prompt = false;  // as RenderedChat::clock_in_prompt
};
// Returns the prompt of a conversation by the model's chat template. The text of a message never
// becomes a special token. now_unix_s: the time for templates that write the date; 0: the clock.
// own: replaces the model's template; nullptr: the model's. variables: an object for it, or null.
Result<EncodedChat> EncodeChat(const Engine& engine, const std::vector<ChatMessage>& messages,
                               int64_t now_unix_s = 0, const ChatTemplate* own = nullptr,
                               const JsonValue& variables = JsonValue());

}  // namespace kvasir
