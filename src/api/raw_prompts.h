// The prompts of completions: texts and token ids as they are, without a template.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "api/chat_prompt.h"
#include "http/errors.h"
#include "http/json_body.h"
#include "text/tokenizer.h"

namespace kvasir {

using RawPrompts = std::vector<std::vector<TokenId>>;

// Returns the prompts of the field `prompt`: one, or a list of them. kInvalidArgument: another
// form, more prompts than may run or wait, or more than 1,024 answers, `num_choices` to each
// prompt.
Result<std::vector<const JsonValue*>> ListPrompts(JsonFields& fields, uint32_t num_choices,
                                                  const ModelView& model);

// Returns the ids of one prompt: a text, a list of token ids, a list of texts and ids, or an object
// with one of these as `prompt_string`. One that begins with a text begins with what the tokenizer
// adds, if options.add_special. kInvalidArgument: another form, or an id that the vocabulary lacks;
// kUnsupported: images. Errors as EncodeText's. O(text).
Result<std::vector<TokenId>> IdsOf(const JsonValue& prompt, const EncodeOptions& options,
                                   const ModelView& model);

// Returns the limit of a text's tokens: the model's, or more where the last tokens of a prompt of
// the request need not be exact and so may pass the context.
size_t MaxTextTokens(const GenerateRequest& request, const ModelView& model);

// Checks that a request with spans has one prompt, and that of ids. kInvalidArgument, of
// "cache.spans".
Status CheckSpans(std::span<const JsonValue* const> list, const GenerateRequest& request);

// Returns the texts that `echo` puts before the answers: [prompt]. REQUIRES: `prompts` are the ids
// of `list`. kInvalidArgument, of "echo": prompts of ids have more than model.max_decoded_bytes of
// text. Errors as DecodeIds'. O(text).
Result<std::vector<std::string>> EchoOf(std::span<const JsonValue* const> list,
                                        const RawPrompts& prompts, const ModelView& model);

// Returns the error of a prompt that does not fit the context: Cause::kContext with the numbers.
// `tokens`: how many it has, or at least has, beside `answer` to generate; `count`: both for
// people.
Error ContextError(size_t tokens, uint32_t answer, std::string_view count, const std::string& field,
                   const ModelView& model);
// kInvalidArgument, of `field`: the prompt has no tokens, or, with Cause::kContext, does not fit
// the context with an answer.
Status CheckLength(size_t tokens, uint32_t max_tokens, const std::string& field,
                   const ModelView& model);
// Checks a prompt of a request. One of which the last tokens are not exact need not fit: the engine
// knows its limits.
Status CheckLength(size_t tokens, const GenerateRequest& request, const std::string& field,
                   const ModelView& model);

}  // namespace kvasir
