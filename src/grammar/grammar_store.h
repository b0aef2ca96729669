// GrammarStore: compiled grammars by what they were compiled from, and their masks.
#pragma once

#include <functional>
#include <list>
#include <memory>

#include "base/digest.h"
#include "base/mutex.h"
#include "grammar/grammar.h"
#include "grammar/token_masks.h"

namespace kvasir {

// All that is kept stays within one budget: a quarter of it for grammars, the rest for masks. What
// was used longest ago goes first; who holds a grammar keeps it. Thread-safe.
class GrammarStore {
 public:
  GrammarStore(std::shared_ptr<const TokenTrie> trie, uint64_t budget_bytes);

  // The grammar of what has this digest: `compile` makes it, on the caller's thread, unless it is
  // kept. O(1) in the grammar where it is.
  using Compile = std::function<Result<std::shared_ptr<const Grammar>>()>;
  Result<std::shared_ptr<const Grammar>> Get(const Digest& digest, const Compile& compile);
  TokenMasks& masks() { return masks_; }
  uint64_t bytes() const;  // of grammars and masks that are kept; at most the budget

 private:
  struct Kept {
    Digest digest;
    std::shared_ptr<const Grammar> grammar;
  };

  void Keep(const Digest& digest, std::shared_ptr<const Grammar> grammar);

  const uint64_t grammar_budget_bytes_;
  TokenMasks masks_;
  mutable Mutex mutex_;
  std::list<Kept> kept_ KV_GUARDED_BY(mutex_);  // the last used first; few
  uint64_t bytes_ KV_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvasir
