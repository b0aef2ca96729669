// GrammarStore: compiled grammars by what they were compiled from, and their masks.
#pragma once

#include <list>
#include <memory>
#include <string_view>

#include "base/digest.h"
#include "base/mutex.h"
#include "grammar/grammar.h"
#include "grammar/token_masks.h"

namespace kvasir {

// What a text that describes answers is written in.
enum class GrammarLanguage : uint8_t {
  kGbnf,
  kJsonSchema,
  kStrictJsonSchema,  // SchemaStrictness::kStrict
  kRegularExpression,
  kTexts,  // a JSON list of strings: one of them
};

// All that is kept stays within one budget: a quarter of it for grammars, the rest for masks. What
// was used longest ago goes first; who holds a grammar keeps it. Thread-safe.
class GrammarStore {
 public:
  GrammarStore(std::shared_ptr<const TokenTrie> trie, uint64_t budget_bytes);

  // The grammar of the text, compiled now unless it is kept. Errors as those of CompileGbnf,
  // CompileJsonSchema, CompileRegularExpression and CompileTexts; kInvalidArgument too where JSON
  // is malformed or nests more than 128 deep. On the caller's thread; O(1) in the grammar where it
  // is kept.
  Result<std::shared_ptr<const Grammar>> Get(GrammarLanguage language, std::string_view text);
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
