#include "schedule/not_finite.h"

#include <fmt/format.h>

namespace kvasir {

Error NotFinite(const Request& request, std::string_view what) {
  if (!request.adapters.get()) {
    return {Code::kCorruption, fmt::format("model: {} not finite", what)};
  }
  return {Code::kInvalidArgument,
          fmt::format("with these adapters and scales {} not finite; lower the scales", what),
          "lora"};
}

Error RowNotFinite(const Request& request, const Sequence& sequence, uint32_t position) {
  return NotFinite(request, fmt::format("the activations of token {} (id {}) are", position,
                                        sequence.tokens[position]));
}

}  // namespace kvasir
