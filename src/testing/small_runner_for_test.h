// The sizes of a small FakeRunner for tests of a scheduler, and prompts that it can read.
#pragma once

#include <memory>
#include <vector>

#include "cache/kv_cache.h"
#include "kvasir/types.h"
#include "testing/fake_runner.h"

namespace kvasir {

inline constexpr uint32_t kSmallVocab = 64, kSmallContext = 512, kSmallRows = 16,
                          kSmallBlockTokens = 16;

inline FakeRunner::Options SmallRunnerOptions() {
  return {.vocab_size = kSmallVocab,
          .max_positions = kSmallContext,
          .block_tokens = kSmallBlockTokens,
          .max_rows = kSmallRows,
          .windows = {0}};
}
// Makes a cache of 64 blocks for it. `continues`: it knows what follows tokens.
inline std::unique_ptr<KvCache> SmallCache(const FakeRunner& runner, bool continues = false) {
  return *KvCache::Create({.layout = runner.layout(),
                           .budget_bytes = 1 << 24,
                           .hidden_size = FakeRunner::kHidden,
                           .num_cursors = 4,
                           .max_blocks = 64,
                           .secret = {},
                           .step_tokens = kSmallRows,
                           .continues = continues});
}

// Makes a prompt; those with different first tokens share no block.
inline std::vector<TokenId> SmallPrompt(uint32_t tokens, TokenId first = 1) {
  std::vector<TokenId> prompt(tokens);
  for (uint32_t i = 0; i < tokens; ++i) {
    prompt[i] = static_cast<TokenId>((first + i * 7) % kSmallVocab);
  }
  return prompt;
}

}  // namespace kvasir
