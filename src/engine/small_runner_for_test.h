// The sizes of a small FakeRunner for tests of a scheduler, and prompts that it can read.
#pragma once

#include <vector>

#include "kvasir/types.h"

namespace kvasir {

inline constexpr uint32_t kSmallVocab = 64, kSmallContext = 512, kSmallRows = 16,
                          kSmallBlockTokens = 16;

// Prompts with different first tokens share no block.
inline std::vector<TokenId> SmallPrompt(uint32_t tokens, TokenId first = 1) {
  std::vector<TokenId> prompt(tokens);
  for (uint32_t i = 0; i < tokens; ++i) {
    prompt[i] = static_cast<TokenId>((first + i * 7) % kSmallVocab);
  }
  return prompt;
}

}  // namespace kvasir
