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
#include "chat/answer_parser.h"
#include "http/errors.h"
#include "http/json_fields.h"
#include "kvasir/engine.h"

namespace kvasir {

// Probabilities of tokens: the model's, as logarithms, or those that they were drawn with.
enum class Probs { kModel, kSampled };

// What answers in the form of llama.cpp's server say of their requests.
struct LlamaSpec {
  std::string settings;                      // `generation_settings`: the text of an object
  std::vector<std::string> prompts;          // their texts; empty: they are not said
  std::vector<uint32_t> prompt_tokens;       // of each prompt
  std::vector<std::string> response_fields;  // paths; empty: all
  int64_t id_slot = -1;                      // as asked for
  uint32_t ctx_size = 0;
  bool post_sampling_probs = false;

  Probs probs() const { return post_sampling_probs ? Probs::kSampled : Probs::kModel; }
};

// What `__verbose` says of a request (llama.cpp).
struct VerboseSpec {
  std::string settings;              // `generation_settings`: the text of an object
  std::vector<std::string> prompts;  // their texts, with special tokens
};

// Of translations: which requests make the answer to each text.
struct TranslationSpec {
  // A sentence, or all of a text that is not split.
  struct Part {
    std::optional<size_t> request;  // absent: it has no tokens, and neither has its answer
    std::string break_before;       // Sentences::BreakBefore
  };
  using Parts = std::vector<Part>;  // none of a text without sentences
  std::vector<Parts> texts;
  bool splits_sentences = false;
  bool is_search = false;       // by beams
  float length_penalty = 1;     // of scores
  std::vector<TokenId> prompt;  // what the tokens of an answer begin with

  // Of LibreTranslate's /translate.
  struct Libre {
    bool has_list = false;  // `q` is a list, and so is the answer
    uint32_t alternatives = 0;
  };
  std::optional<Libre> libre;
};

// The format of an answer, which the engine does not need.
struct AnswerSpec {
  bool chat = false;  // chat.completion, else text_completion
  bool stream = false;
  bool include_usage = false;
  bool return_token_ids = false;  // choices have `token_ids` (vLLM)
  bool return_tokens = false;     // choices have `tokens` (llama.cpp)
  // Of streams (llama.cpp): events of choice 0 have `timings`; events before the first token have
  // `prompt_progress`.
  bool timings_per_token = false, return_progress = false;
  std::optional<uint32_t> logprobs;
  ThoughtForm thoughts = ThoughtForm::kApart;
  ToolChoice tool_choice;
  bool parallel_calls = true;  // else an answer has one call at most
  std::optional<uint32_t> max_thought_tokens;
  std::optional<std::vector<std::string>> samplers;  // those that the request lists
  // How the answers are read; null: all of an answer is content.
  std::shared_ptr<const AnswerReading> reading;
  uint32_t n = 1;                 // choices of each prompt; indexed prompt-major
  std::vector<std::string> echo;  // text in front of each prompt's answers; empty: none
  // Of echo with logprobs: the first token of each prompt, which has none; and how many tokens of
  // prompts all choices show.
  std::vector<TokenId> scored_from;
  uint64_t scored_tokens = 0;
  std::string model;                             // the name in the answer
  std::string fingerprint;                       // of all that decides its bits, the request apart
  std::optional<uint32_t> slot;                  // whose last request this is (server/slots.h)
  bool verbose = false;                          // the answer has `__verbose`
  std::shared_ptr<const VerboseSpec> verbosely;  // what that says; of OpenAI's form alone
  // Of a session's answer: which of its messages this is, and how many messages of the session the
  // prompt left out, if it may leave out some.
  struct Of {
    std::string session;
    uint64_t index = 0;
    std::optional<uint32_t> dropped_messages;
  };
  std::optional<Of> of;
  std::vector<std::string> unseen;  // of the request's `ignored`: what its prompt does not show
  std::shared_ptr<const LlamaSpec> llama;              // the form of /completion; null: another
  std::shared_ptr<const TranslationSpec> translation;  // of translations; both null: OpenAI's
};

struct GenerationCall {
  std::vector<GenerateRequest> requests;  // one per prompt
  AnswerSpec spec;
};

// These functions and Engine::Submit find every error before the request has an effect. A known
// field that is not supported and would change the answer gives kUnsupported; unknown fields go to
// `ignored`.
Result<GenerationCall> ParseChatRequest(std::string_view body, const ModelView& model);
Result<GenerationCall> ParseCompletionRequest(std::string_view body, const ModelView& model);

// The parts of ParseChatRequest, for prompts that are made otherwise. BeginChat reads all fields
// but those of the prompt and makes one request; SetPrompt checks the prompt's length and gives the
// request its prompt, and the names of the fields that nobody has read until then and of what the
// prompt does not show.
Result<GenerationCall> BeginChat(JsonFields& fields, const ModelView& model);
Status SetPrompt(ChatPrompt prompt, const JsonFields& fields, const ModelView& model,
                 GenerationCall* call);

// Sets how the answers are read, which special tokens they show, and what they may be. `tools`:
// those of the request, checked, or null; `thought`: what the prompt's end says of it.
// kInvalidArgument: a choice of a tool that is not there.
Status SetReading(const JsonValue* tools, PromptThought thought, const ModelView& model,
                  GenerationCall* call);
// The ids of special tokens that are marks of the model's answers. REQUIRES: a tokenizer.
std::vector<TokenId> SpecialMarks(const ModelView& model);

// Reads sampling, length, stop, n, stream and cache fields into `request` and `spec`. Errors stay
// in `fields`.
void ReadGenerationFields(JsonFields& fields, const ModelView& model, GenerateRequest* request,
                          AnswerSpec* spec);

// Fails on known fields that are not supported and would change the answer, unless their value
// changes nothing (null, false, empty, or the neutral number). `but`: names that the caller reads.
void RefuseUnsupported(JsonFields& fields, std::span<const std::string_view> but = {});

// kNotFound unless `name` is a listed name, "default" or empty (llama.vim), or the model takes any
// name. Returns the name to answer with.
Result<std::string> CheckModel(const std::string& name, const ModelView& model);

// Encodes raw text. kUnsupported without a tokenizer.
Result<std::vector<TokenId>> EncodeText(std::string_view text, const std::string& field,
                                        const EncodeOptions& options, const ModelView& model);

// The text of ids, at most model.max_decoded_bytes. REQUIRES: a tokenizer.
Result<std::string> DecodeIds(std::span<const TokenId> ids, const std::string& field,
                              const ModelView& model);

}  // namespace kvasir
