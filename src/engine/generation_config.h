// generation_config.json: how a model's makers sample it.
#pragma once

#include <string>
#include <string_view>

#include "kvasir/sampling_params.h"
#include "kvasir/status.h"

namespace kvasir {

// Reads temperature, top_k, top_p, min_p and repetition_penalty, as vLLM takes them: null is
// absent, a top_k of -1 is 0, do_sample and max_new_tokens are not looked at. "": nothing is said.
// kInvalidArgument: a value of a wrong type or out of range; the message names `file`, the key and
// the flag that goes on without it.
Result<SamplingDefaults> ParseGenerationConfig(std::string_view json, const std::string& file);

}  // namespace kvasir
