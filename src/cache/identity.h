// Identity: digest of everything that decides the bytes of KV.
#pragma once

#include <string>

#include "base/digest.h"

namespace kvasir {

// The parts, each a digest or canonical text. Any change of a part gives another Identity.
struct IdentityParts {
  Digest weights{};    // content of the weights in the form that steps use, not file names
  std::string config;  // canonical text of the architecture and RoPE
  Digest adapter{};    // zero: none
  Digest tokenizer{};
  std::string kv_format;  // per layer, K and V
  std::string layout;     // block_tokens, tile order
  std::string numerics;   // "portable-1"
};

using Identity = Digest;
// Computes SHA-256 over each part's length and bytes, in the order above.
Identity IdentityOf(const IdentityParts& parts);

}  // namespace kvasir
