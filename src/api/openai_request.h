// Converts OpenAI's request bodies, with the additions of llama.cpp's server and vLLM, to
// GenerateRequests.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "api/chat_prompt.h"
#include "api/format_fields.h"
#include "api/generation_call.h"
#include "api/model_view.h"
#include "chat/answer_parser.h"
#include "http/errors.h"
#include "http/json_body.h"
#include "kvasir/generate_request.h"

namespace kvasir {

// What fields of OpenAI's and llama.cpp's requests say beside what the engine and an AnswerSpec
// have.
struct AskedFields {
  bool include_usage = false, return_token_ids = false, return_tokens = false, verbose = false;
  std::optional<std::vector<std::string>> samplers;  // those that the request lists
  std::optional<uint32_t> slot;                      // whose last request this is (server/slots.h)
};

// How a request wants its answer's thoughts and calls.
struct ReadingFields {
  ThoughtForm thoughts = ThoughtForm::kApart;
  ToolChoice tool_choice;
  bool parallel_calls = true;  // else an answer has one call at most
  std::optional<uint32_t> max_thought_tokens;
};

// A request in OpenAI's form, while it is read.
struct OpenAiCall {
  std::vector<GenerateRequest> requests;  // one per prompt
  AnswerSpec spec;
  AskedFields asked;
  ReadingFields reading;
  std::vector<std::string> unseen;
  PromptHead head;
};

// Reads a request. These functions and Engine::Submit find every error before the request has an
// effect. A known field that is not supported and would change the answer gives kUnsupported;
// unknown fields go to `ignored`.
Result<GenerationCall> ParseChatRequest(std::string_view body, const ModelView& model);
Result<GenerationCall> ParseCompletionRequest(std::string_view body, const ModelView& model);

// Reads the fields of a chat completion, all but the form of its answer. `tree`: as RenderMessages
// takes it.
Result<OpenAiCall> ReadChat(JsonFields& fields, JsonTree* tree, const ModelView& model);

// Reads the fields of a completion, all but the form of its answer, which has `most_tokens` unless
// the fields say otherwise.
Result<OpenAiCall> ReadCompletion(JsonFields& fields, const ModelView& model, uint32_t most_tokens);
// Reads the same of a text whose middle is to be filled in, as /infill has it.
Result<OpenAiCall> ReadInfill(JsonFields& fields, const ModelView& model);

// Does the parts of ReadChat, for prompts that are made otherwise. BeginChat reads all
// fields but those of the prompt and makes one request; SetPrompt checks the prompt's length and
// gives the request its prompt, and the names of the fields that were not read until then and of
// what the prompt does not show.
Result<OpenAiCall> BeginChat(JsonFields& fields, const ModelView& model);
Status SetPrompt(ChatPrompt prompt, const JsonFields& fields, const ModelView& model,
                 OpenAiCall* call);

// Sets how the answers are read, which special tokens they show, and what they may be. `tools`:
// those of the request, checked, or null; `thought`: what the prompt's end says of it.
// kInvalidArgument: a choice of a tool that is not there.
Status SetReading(const JsonValue* tools, PromptThought thought, const ModelView& model,
                  OpenAiCall* call);
// Ends the reading of a chat. kInvalidArgument: its `__verbose` would be too long.
Result<GenerationCall> EndChat(OpenAiCall call, const ModelView& model);
// Returns the ids of special tokens that are marks of the model's answers. REQUIRES: a tokenizer.
std::vector<TokenId> SpecialMarks(const ModelView& model);

// Reads sampling, length, stop, n, stream and cache fields. Errors stay in `fields`.
void ReadGenerationFields(JsonFields& fields, const ModelView& model, GenerateRequest* request,
                          AnswerSpec* spec, AskedFields* asked);

// Reads the fields that say how a request runs and what of the cache it uses: priority, timeout_ms,
// cache_salt, cache_prompt, cache. Errors stay in `fields`.
void ReadRunFields(JsonFields& fields, GenerateRequest* request);
// Reads `cache` alone: what the request uses of the cache. Errors stay in `fields`.
void ReadCache(JsonFields& fields, GenerateRequest* request);

// Fails on known fields that are not supported and would change the answer, unless their value
// changes nothing (null, false, empty, or the neutral number). `but`: names that the caller reads.
void RefuseUnsupported(JsonFields& fields, std::span<const std::string_view> but = {});

// Reads `model` of a body, and returns what CheckModel does.
Result<std::string> ReadModel(JsonFields& fields, const ModelView& model);

// Encodes raw text. kUnsupported without a tokenizer.
Result<std::vector<TokenId>> EncodeText(std::string_view text, const std::string& field,
                                        const EncodeOptions& options, const ModelView& model);

// Returns the text of ids, at most model.max_decoded_bytes. REQUIRES: a tokenizer.
Result<std::string> DecodeIds(std::span<const TokenId> ids, const std::string& field,
                              const ModelView& model);

}  // namespace kvasir
