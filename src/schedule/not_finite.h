// Errors of requests whose activations or logits are not finite.
#pragma once

#include <cstdint>
#include <string_view>

#include "kvasir/status.h"
#include "schedule/request.h"

namespace kvasir {

// Returns the error of a request: the model is damaged or, where it has adapters, their scales are
// too large. `what`: "a logit is".
Error NotFinite(const Request& request, std::string_view what);
// Returns the error of the row of a sequence's token.
Error RowNotFinite(const Request& request, const Sequence& sequence, uint32_t position);

}  // namespace kvasir
