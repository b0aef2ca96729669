// PrefixList: what the cache holds of an owner, for people who look.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kvasir/types.h"

namespace kvasir {

// Tokens that are resident one after the other, found together by the same number of prompts.
struct PrefixRun {
  std::optional<uint32_t> parent;  // the run that it goes on from: an index
  uint32_t space = 0;              // runs of different salts, or of another adapter, have others
  uint32_t begin = 0;              // tokens before it
  uint32_t blocks = 0, used_blocks = 0;  // of all layer groups; those that requests use right now
  uint32_t hits = 0;                     // prompts that reused it
  std::vector<TokenId> tokens;
};
struct PrefixList {
  std::vector<PrefixRun> runs;
  bool has_more = false;
};

}  // namespace kvasir
