// Converts request bodies of llama.cpp's server: /completion and /infill.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string_view>

#include "api/openai_request.h"
#include "api/openai_writer.h"

namespace kvasir {

// Returns the sampling parameters of llama.cpp's server where a request says nothing.
SamplingParams LlamaSampling();

// Reads a request as ParseChatRequest does. `model.sampling` are the defaults of these paths. Known
// fields of llama.cpp that would change the answer and are not supported give kUnsupported.
Result<GenerationCall> ParseLlamaRequest(std::string_view body, const ModelView& model);

// Reads a request whose prompt is `input_extra`, `input_prefix` with `prompt`, and `input_suffix`,
// marked by the model's tokens. kUnsupported, of "infill": the vocabulary lacks them.
Result<GenerationCall> ParseInfillRequest(std::string_view body, const ModelView& model);

// `generation_settings`, and the parameters of /props. What is not supported has the value that
// switches it off. `ends`: the tokens that end an answer.
nlohmann::json LlamaSettings(const GenerateRequest& request, const AnswerSpec& spec,
                             const AskedFields& asked, std::span<const TokenId> ends = {});
// Returns what `__verbose` says of requests. kInvalidArgument: the prompts' texts are too long.
Result<VerboseSpec> VerboseOf(std::span<const GenerateRequest> requests, const AnswerSpec& spec,
                              const AskedFields& asked, const ModelView& model);

}  // namespace kvasir
