// GrammarStore: compiled grammars by what they were compiled from, and their masks.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <optional>

#include "base/digest.h"
#include "base/mutex.h"
#include "grammar/grammar.h"
#include "grammar/token_masks.h"

namespace kvasir {

// One budget: half of it is for grammars, those that somebody holds and those that are kept, and
// the rest for masks. What was used longest ago goes first; who holds a grammar keeps it, and
// others wait for its room. A grammar that is larger than that half is there alone. Thread-safe.
class GrammarStore {
 public:
  GrammarStore(std::shared_ptr<const TokenTrie> trie, uint64_t budget_bytes);

  static constexpr std::chrono::milliseconds kAtOnce{0};
  // The grammar of what has this digest: `compile` makes it, on the caller's thread, unless it is
  // kept. Waits as long as `patience` for room that others hold; kExhausted where that was in vain.
  // Absent: it has room in any case. O(1) in the grammar where it is.
  using Compile = std::function<Result<std::shared_ptr<const Grammar>>()>;
  Result<std::shared_ptr<const Grammar>> Get(
      const Digest& digest, const Compile& compile,
      std::optional<std::chrono::milliseconds> patience = kAtOnce);
  TokenMasks& masks() { return masks_; }
  uint64_t bytes() const;  // of all grammars, held or kept, and of masks

 private:
  struct Kept {
    Digest digest;
    std::shared_ptr<const Grammar> grammar;
  };

  // Outlives the store where somebody holds a grammar that long.
  struct Alive {
    Mutex mutex;
    std::condition_variable changed;
    uint64_t bytes KV_GUARDED_BY(mutex) = 0;  // of all grammars
  };

  Result<std::shared_ptr<const Grammar>> Admit(std::shared_ptr<const Grammar> grammar,
                                               std::optional<std::chrono::milliseconds> patience);
  bool EvictOne();

  const uint64_t grammar_budget_bytes_;
  TokenMasks masks_;
  mutable Mutex mutex_;
  std::list<Kept> kept_ KV_GUARDED_BY(mutex_);  // the last used first; few
  const std::shared_ptr<Alive> alive_ = std::make_shared<Alive>();
};

}  // namespace kvasir
