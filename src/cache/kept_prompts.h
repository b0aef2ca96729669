// KeptPrompts: prompts of which a forget leaves the blocks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvasir/types.h"

namespace kvasir {

// In lexicographic order, and without those that another one begins with, so that who walks over
// them looks at what several of them share once. Their ids are zeroed when this ends. Immutable.
class KeptPrompts {
 public:
  struct Prompt {
    std::vector<TokenId> ids;
    uint32_t shared = 0;   // tokens in common with the prompt before this one
    uint32_t on_path = 0;  // tokens in common with the forgotten prompt
  };

  KeptPrompts() = default;  // none
  // `forgotten`: ForgetRequest::ids. O(tokens * log prompts).
  KeptPrompts(std::vector<std::vector<TokenId>> prompts, std::span<const TokenId> forgotten);
  KeptPrompts(const KeptPrompts&) = delete;
  ~KeptPrompts();

  std::span<const Prompt> prompts() const { return prompts_; }
  // Returns the tokens of the forgotten prompt that one of them begins with, at most.
  uint32_t on_path() const { return on_path_; }

 private:
  std::vector<Prompt> prompts_;
  uint32_t on_path_ = 0;
};

}  // namespace kvasir
