// The prompt of a text whose middle is to be filled in.
#pragma once

#include <vector>

#include "api/chat_prompt.h"
#include "http/json_body.h"

namespace kvasir {

// Returns the model's marks: `named` by its files, else tokens of the vocabulary with a known text.
FimTokens FindFimTokens(const FimTokens& named, const Tokenizer& tokenizer);

// kUnsupported, of "infill": the model has no text, or no token before the prefix, the suffix or
// the middle.
Status CheckInfill(const ModelView& model);

// [repo] "project" [file] name text ... [file] "file" [prefix] input_prefix prompt [suffix]
// input_suffix [middle]: the files of `input_extra` come before what changes at each key press, so
// that the cache has them. Without a token before files, their texts come first, divided by a line.
// In what the request gives, no special token is recognised. max_tokens: of each text.
// kInvalidArgument names the field.
// REQUIRES: CheckInfill.
Result<std::vector<TokenId>> InfillPrompt(JsonFields& fields, const ModelView& model,
                                          size_t max_tokens);

// Has the answer end before what follows the middle in a file of the training data.
void AddInfillEnds(const ModelView& model, GenerateRequest* request);

}  // namespace kvasir
