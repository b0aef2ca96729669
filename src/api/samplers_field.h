// ReadSamplers: the list of samplers that clients of llama.cpp's server send.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "http/json_body.h"
#include "kvasir/sampling_params.h"

namespace kvasir {

// The default order of llama.cpp's server.
inline constexpr std::string_view kDefaultSamplers[] = {
    "penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"};

// `samplers`: names in the order in which they work, or a text with a letter for each. What the
// list leaves out is off: temperature is 1. Samplers that are not available are always off (their
// fields are refused), so their names change nothing. nullopt: the request has no list. Errors stay
// in `fields`: unknown names, names that come twice, and orders in which the answer would be
// another than Sampler's (sampling/sampler.h). REQUIRES: the other fields of `sampling` are read.
std::optional<std::vector<std::string>> ReadSamplers(JsonFields& fields, SamplingParams* sampling);

}  // namespace kvasir
