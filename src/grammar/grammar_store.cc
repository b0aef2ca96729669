#include "grammar/grammar_store.h"

#include <algorithm>
#include <utility>

#include "base/result.h"

namespace kvasir {
namespace {

uint64_t BytesOf(const Grammar& grammar) { return grammar.bytes() + 128; }  // and the list's

}  // namespace

GrammarStore::GrammarStore(std::shared_ptr<const TokenTrie> trie, uint64_t budget_bytes)
    : grammar_budget_bytes_(budget_bytes / 4),
      masks_(std::move(trie), budget_bytes - budget_bytes / 4) {}

uint64_t GrammarStore::bytes() const {
  const MutexLock lock(mutex_);
  return bytes_ + masks_.bytes();
}

Result<std::shared_ptr<const Grammar>> GrammarStore::Get(const Digest& digest,
                                                         const Compile& compile) {
  {
    const MutexLock lock(mutex_);
    const auto found = std::find_if(kept_.begin(), kept_.end(),
                                    [&](const Kept& kept) { return kept.digest == digest; });
    if (found != kept_.end()) {
      kept_.splice(kept_.begin(), kept_, found);
      return found->grammar;
    }
  }
  KV_ASSIGN(std::shared_ptr<const Grammar> grammar, compile());
  Keep(digest, grammar);
  return grammar;
}

void GrammarStore::Keep(const Digest& digest, std::shared_ptr<const Grammar> grammar) {
  const MutexLock lock(mutex_);
  const uint64_t bytes = BytesOf(*grammar);
  // Another thread may have been faster: then both are kept until they go.
  if (bytes > grammar_budget_bytes_) return;
  while (bytes_ + bytes > grammar_budget_bytes_) {
    bytes_ -= BytesOf(*kept_.back().grammar);
    kept_.pop_back();
  }
  kept_.push_front({digest, std::move(grammar)});
  bytes_ += bytes;
}

}  // namespace kvasir
