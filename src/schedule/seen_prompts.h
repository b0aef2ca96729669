// SeenPrompts: a guess at how much of a prompt is in the cache, without asking the cache.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/digest.h"
#include "kvasir/types.h"

namespace kvasir {

// Remembers beginnings of prompts as hashes of their chunks, the newest in each place of a table of
// fixed size, and those of the last `cache_tokens` tokens only: others were evicted. Wrong guesses
// only make estimates wrong. One thread at a time.
class SeenPrompts {
 public:
  static constexpr uint32_t kChunkTokens = 16;
  static constexpr uint32_t kPlaces = 1 << 17;  // two million tokens; 1 MiB

  explicit SeenPrompts(uint64_t cache_tokens);

  // Hashes of everything up to the end of each whole chunk of a prompt, and of the whole prompt.
  // Prompts of two owners, of two salts of one (or a salt and none), or with other adapters (a
  // digest of them; zero: none), have none in common: their
  // chains start at digests under a key that no caller knows, so none can choose a salt that makes
  // them meet.
  struct Beginnings {
    uint32_t owner = 0;   // which of epochs_
    uint32_t tokens = 0;  // of the prompt
    std::vector<uint64_t> hashes;
  };
  static Beginnings Of(const HmacKey& key, std::string_view owner,
                       std::optional<std::string_view> salt, std::span<const TokenId> prompt,
                       const Digest& adapters = {});  // O(tokens)

  // Returns the tokens of the longest beginning that was added. O(hashes).
  uint32_t SeenTokens(const Beginnings& prompt) const;
  // `resume_points`: the lengths at which another prompt can go on from this one, ascending; empty:
  // all. O(hashes).
  void Add(const Beginnings& prompt, std::span<const uint32_t> resume_points = {});
  // Forgets what was seen of this owner (and of another one, one time in 256).
  void Forget(std::string_view owner);

 private:
  struct Place {
    uint32_t check = 0, added = 0;  // other bits of the hash; chunks_ then
  };
  static uint32_t EpochOf(std::string_view owner);
  uint64_t KeyOf(const Beginnings& prompt, size_t i) const;
  void Add(uint64_t key);

  std::vector<Place> places_ = std::vector<Place>(kPlaces);
  std::array<uint32_t, 256> epochs_{};  // how often owners were forgotten, by their names' hashes
  uint32_t chunks_ = 0;                 // added so far
  const uint32_t most_chunks_;          // added since, after which one was evicted
};

}  // namespace kvasir
