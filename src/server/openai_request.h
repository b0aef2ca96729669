// OpenAI's request bodies, and what llama.cpp's server and vLLM add to them, as GenerateRequests.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/engine.h"
#include "server/chat_prompt.h"
#include "server/errors.h"
#include "server/json_fields.h"

namespace kvasir {

// How an answer must look; what the engine does not need to know.
struct AnswerSpec {
  bool chat = false;  // chat.completion, else text_completion
  bool stream = false;
  bool include_usage = false;
  bool return_token_ids = false;  // choices have `token_ids` (vLLM)
  bool return_tokens = false;     // choices have `tokens` (llama.cpp)
  std::optional<uint32_t> logprobs;
  uint32_t n = 1;                 // choices of each prompt; indexed prompt-major
  std::vector<std::string> echo;  // text in front of each prompt's answers; empty: none
  std::string model;              // as told in the answer
};

struct GenerationCall {
  std::vector<GenerateRequest> requests;  // one per prompt
  AnswerSpec spec;
};

// Every error is found here or by Engine::Submit, before anything has an effect. A known field that
// is not supported and would change the answer is kUnsupported; unknown ones go to `ignored`.
Result<GenerationCall> ParseChatRequest(std::string_view body, const ModelView& model);
Result<GenerationCall> ParseCompletionRequest(std::string_view body, const ModelView& model);

// Reads sampling, length, stop, n, stream and cache fields into the two. Errors stay in `fields`.
void ReadGenerationFields(JsonFields& fields, const ModelView& model, GenerateRequest* request,
                          AnswerSpec* spec);

// Fails on known fields that nothing here supports and that would change the answer, unless their
// value asks for nothing (null, false, empty, or the neutral number).
void RefuseUnsupported(JsonFields& fields);

// kNotFound unless `name` is a listed name or "default". Returns the name to answer with.
Result<std::string> CheckModel(const std::string& name, const ModelView& model);

// Encodes raw text. kUnsupported without a tokenizer.
Result<std::vector<TokenId>> EncodeText(std::string_view text, const std::string& field,
                                        const EncodeOptions& options, const ModelView& model);

// The text of ids, at most model.max_decoded_bytes. REQUIRES: a tokenizer.
Result<std::string> DecodeIds(std::span<const TokenId> ids, const std::string& field,
                              const ModelView& model);

}  // namespace kvasir
