// Merges of a vocabulary that lists none: any two tokens merge whose texts joined are a token.
#pragma once

#include <cstdint>
#include <vector>

#include "kvasir/status.h"
#include "text/vocabulary.h"

namespace kvasir {

struct ScoreMerge {
  TokenId left, right, joined;
};
struct ScoreMerges {
  std::vector<ScoreMerge> merges;
  uint64_t steps = 0;  // tokens that were looked at as a part of another: at most twice its bytes
};

// Merges of normal tokens: user-defined ones are found before merging starts, and merging a user's
// text must not yield them; in SentencePiece the other kinds are not pieces. At most max_merges,
// else kCorruption. O(bytes of all texts), and sorting them. REQUIRES: CheckVocabulary succeeded.
Result<ScoreMerges> MergesByScore(const Vocabulary& vocabulary, uint64_t max_merges);

// Returns the limit. Known vocabularies have up to 3 merges for each token; small ones with long
// runs of a character have more.
inline uint64_t MaxScoreMerges(uint64_t num_tokens) { return 65536 + 16 * num_tokens; }

}  // namespace kvasir
