// The prompts of completions: texts and token ids as they are, without a template.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/chat_prompt.h"
#include "server/errors.h"
#include "server/json_fields.h"
#include "text/tokenizer.h"

namespace kvasir {

using RawPrompts = std::vector<std::vector<TokenId>>;

// The prompts of the field `prompt`: a text, a list of token ids, a list of texts and ids that are
// one prompt, an object with one of these as `prompt_string`, or a list of prompts. A prompt that
// begins with a text begins with what the tokenizer adds, if options.add_special. kInvalidArgument:
// another form, more prompts than may run or wait, or more than 1,024 answers of `num_choices`
// each.
Result<std::vector<const JsonValue*>> ListPrompts(JsonFields& fields, uint32_t num_choices,
                                                  const ModelView& model);
Result<std::vector<TokenId>> IdsOf(const JsonValue& prompt, const EncodeOptions& options,
                                   const ModelView& model);

// The texts that `echo` puts before the answers.
Result<std::vector<std::string>> EchoOf(std::span<const JsonValue* const> list,
                                        const RawPrompts& prompts, const ModelView& model);

// kInvalidArgument, of `field`: the prompt has no tokens, or, with Cause::kContext, does not fit
// the context with an answer.
Status CheckLength(size_t tokens, uint32_t max_tokens, const std::string& field,
                   const ModelView& model);

}  // namespace kvasir
