#include "grammar/grammar_store.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/result.h"

namespace kvasir {
namespace {

uint64_t BytesOf(const Grammar& grammar) { return grammar.bytes() + 128; }  // and the list's

}  // namespace

GrammarStore::GrammarStore(std::shared_ptr<const TokenTrie> trie, uint64_t budget_bytes)
    : grammar_budget_bytes_(budget_bytes / 2),
      masks_(std::move(trie), budget_bytes - budget_bytes / 2) {}

uint64_t GrammarStore::bytes() const {
  const MutexLock lock(alive_->mutex);
  return alive_->bytes + masks_.bytes();
}

Result<std::shared_ptr<const Grammar>> GrammarStore::Get(
    const Digest& digest, const Compile& compile,
    std::optional<std::chrono::milliseconds> patience) {
  {
    const MutexLock lock(mutex_);
    const auto found = std::find_if(kept_.begin(), kept_.end(),
                                    [&](const Kept& kept) { return kept.digest == digest; });
    if (found != kept_.end()) {
      kept_.splice(kept_.begin(), kept_, found);
      return found->grammar;
    }
  }
  KV_ASSIGN(std::shared_ptr<const Grammar> compiled, compile());
  KV_ASSIGN(std::shared_ptr<const Grammar> grammar, Admit(std::move(compiled), patience));
  const MutexLock lock(mutex_);
  // Another thread may have been faster: then both are kept until they go.
  if (BytesOf(*grammar) <= grammar_budget_bytes_) kept_.push_front({digest, grammar});
  return grammar;
}

// Lets go of the one that was used longest ago. Whether there was one.
bool GrammarStore::EvictOne() {
  Kept last;  // may be destroyed here, without the lock
  const MutexLock lock(mutex_);
  if (kept_.empty()) return false;
  last = std::move(kept_.back());
  kept_.pop_back();
  return true;
}

Result<std::shared_ptr<const Grammar>> GrammarStore::Admit(
    std::shared_ptr<const Grammar> grammar, std::optional<std::chrono::milliseconds> patience) {
  const uint64_t bytes = BytesOf(*grammar);
  const std::chrono::nanoseconds end =
      std::chrono::nanoseconds(MonotonicNs()) + patience.value_or(kAtOnce);
  while (true) {
    {
      MutexLock lock(alive_->mutex);
      if (!patience || alive_->bytes == 0 || alive_->bytes + bytes <= grammar_budget_bytes_) {
        alive_->bytes += bytes;
        break;
      }
    }
    if (EvictOne()) continue;
    MutexLock lock(alive_->mutex);
    if (alive_->bytes == 0 || alive_->bytes + bytes <= grammar_budget_bytes_) continue;
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::nanoseconds(MonotonicNs()));
    if (left.count() <= 0) {
      return Fail(Code::kExhausted,
                  "the grammar takes {} bytes, and those of running requests leave no room for it "
                  "(--grammar-memory); try again later",
                  bytes);
    }
    lock.WaitFor(alive_->changed, left);
  }
  // Counts the grammar until its last owner drops it.
  const Grammar* const counted = grammar.get();
  return std::shared_ptr<const Grammar>(
      counted, [grammar = std::move(grammar), alive = alive_, bytes](const Grammar*) mutable {
        grammar = nullptr;
        const MutexLock lock(alive->mutex);
        alive->bytes -= bytes;
        alive->changed.notify_all();
      });
}

}  // namespace kvasir
