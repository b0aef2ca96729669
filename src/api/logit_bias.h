// The field `logit_bias`, as OpenAI and llama.cpp's server have it.
#pragma once

#include "api/chat_prompt.h"
#include "http/json_body.h"

namespace kvasir {

// Reads an object from tokens to biases, or a list of [token, bias]. A token is an id, in the
// object as a text of digits, or a text: then the bias is that of each of its tokens. A bias is a
// number, or false: the token is never drawn. The error stays in `fields`.
void ReadLogitBias(JsonFields& fields, const ModelView& model, SamplingParams* sampling);

}  // namespace kvasir
