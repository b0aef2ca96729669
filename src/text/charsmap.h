// Charsmap: SentencePiece's table of normalisation (precompiled_charsmap): texts and what each one
// becomes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/status.h"

namespace kvasir {

// Bytes of a table := size of the trie in bytes (u32, little endian), a Darts-clone double-array
// trie whose values are offsets, and texts that end with a NUL byte each. Immutable; thread-safe.
class Charsmap {
 public:
  struct Match {
    size_t size = 0;             // in bytes, of the text that matched
    std::string_view becomes{};  // a view into the Charsmap
  };

  // `bytes` may be empty: such a table matches nothing. kCorruption names `file` and the place.
  // kUnsupported: a text that becomes more than 64 bytes.
  static Result<Charsmap> Parse(std::string_view bytes, const std::string& file);

  // Returns the longest (or the shortest) text of the table that `text` begins with. O(bytes
  // matched).
  std::optional<Match> Longest(std::string_view text) const { return Find(text, false); }
  std::optional<Match> Shortest(std::string_view text) const { return Find(text, true); }

 private:
  std::optional<Match> Find(std::string_view text, bool first) const;

  std::vector<uint32_t> trie_;
  std::string texts_;
};

}  // namespace kvasir
