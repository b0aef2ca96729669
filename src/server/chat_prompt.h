// From the `messages` of a chat request to the prompt's tokens.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvasir/engine.h"
#include "kvasir/types.h"
#include "server/errors.h"
#include "server/json_fields.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace kvasir {

// What a request needs to know of the model. All pointers outlive it.
struct ModelView {
  std::vector<std::string> names;  // listed ids, the main one first
  const Tokenizer* tokenizer = nullptr;
  const ChatTemplate* chat_template = nullptr;
  SamplingParams sampling;  // of requests that do not say it
  bool uses_tools = true;   // the template speaks of tools; else a request's are listed as ignored
  bool knows_developer = false;  // the template names the role; else it is rendered as system
  uint32_t vocab_size = 0;
  uint32_t ctx_size = 0;
  uint32_t max_ctx_size = 0;     // of any server with this model
  uint32_t max_prompts = 1;      // of one request: what may run or wait at once
  size_t max_decoded_bytes = 0;  // of texts that ids stand for, which may be a hundred times theirs
  // Of a text: enough that a prompt that is somewhat too long is told its length.
  size_t max_text_tokens() const { return size_t{ctx_size} * 4 + 65536; }
};

// Why Tokenizer::Encode took no text.
ApiError EncodeError(const Error& error, const std::string& param, const EncodeOptions& options,
                     const ModelView& model);

// Validates `messages`, `tools`, `add_generation_prompt`, `chat_template_kwargs` and renders them.
// kInvalidArgument names the field: "messages[2].role". `tree` takes the messages as the template
// sees them: it is that of `fields`, or lives as long.
ApiResult<RenderedChat> RenderMessages(JsonFields& fields, JsonTree* tree, const ModelView& model);

struct ChatPrompt {
  std::vector<TokenId> ids;
  std::vector<uint32_t> message_ends;  // as GenerateRequest wants them
};

// Special tokens are recognised only in what the template wrote. O(text). REQUIRES: a tokenizer.
ApiResult<ChatPrompt> EncodeChat(const RenderedChat& chat, const ModelView& model);

}  // namespace kvasir
