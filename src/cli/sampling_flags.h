// Flags that say how tokens are drawn and when an answer ends, and flags whose value is token ids.
#pragma once

#include <string>
#include <vector>

#include "cli/args.h"
#include "kvasir/generate_request.h"
#include "kvasir/sampling_params.h"

namespace kvasir::cli {

// Returns the flags of commands that generate: --temperature, --top-k, ..., --stop.
std::vector<Flag> SamplingFlags();
// Returns the flag of commands that sample: --generation-config.
std::vector<Flag> GenerationConfigFlags();

// Reads sampling, stop strings and max_tokens of a request. The default temperature is 0, so that
// the same command line gives the same answer again.
Status ReadSampling(const Args& args, GenerateRequest& request);
// Sets what the model's makers recommend, where no flag says otherwise.
void TakeDefaults(const Args& args, const SamplingDefaults& defaults, SamplingParams& sampling);

// Reads comma-separated ids, in order, as given. Errors name the flag.
Result<std::vector<TokenId>> ParseIds(const std::string& text, const std::string& flag = "ids");

}  // namespace kvasir::cli
