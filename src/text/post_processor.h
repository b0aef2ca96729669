// Post-processors of tokenizer.json for one sequence: ids before and after it (BOS, EOS).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "kvasir/status.h"
#include "kvasir/types.h"

namespace kvasir {

struct PostProcessor {
  std::vector<TokenId> prefix, suffix;

  // Parses the value of "post_processor"; null adds nothing. kUnsupported names a type that is not
  // implemented.
  static Result<PostProcessor> Parse(const nlohmann::json& value);
};

}  // namespace kvasir
