// SeenPrompts: a guess at how much of a prompt is in the cache, without asking the cache.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "kvasir/types.h"

namespace kvasir {

// Remembers beginnings of prompts as hashes of their chunks, the newest in each place of a table of
// fixed size. Wrong guesses only make estimates wrong. One thread at a time.
class SeenPrompts {
 public:
  static constexpr uint32_t kChunkTokens = 64;
  static constexpr uint32_t kPlaces = 1 << 15;  // two million tokens; 256 KiB

  // Of each whole chunk of the prompt: a hash of everything up to its end. Prompts of two owners,
  // or of two salts of one, have none in common. O(tokens).
  static std::vector<uint64_t> HashesOf(std::string_view owner, std::string_view salt,
                                        std::span<const TokenId> prompt);

  // Tokens at the beginning that an earlier prompt had too. O(hashes).
  uint32_t SeenTokens(std::span<const uint64_t> hashes) const;
  void Add(std::span<const uint64_t> hashes);  // O(hashes)

 private:
  std::vector<uint64_t> places_ = std::vector<uint64_t>(kPlaces);
};

}  // namespace kvasir
