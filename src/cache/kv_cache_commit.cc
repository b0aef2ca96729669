// The publishing half of KvCache: Commit and KeepCursor.
#include <cstring>

#include "base/check.h"
#include "base/fault.h"
#include "cache/cursor_store.h"
#include "cache/kv_cache.h"

namespace kvasir {

bool KvCache::Publishes(const KvSequence& sequence) const {
  return sequence.shares_ && sequence.epoch_ == Of(sequence.namespace_).epoch;
}

void KvCache::Commit(KvSequence& sequence, uint32_t num_tokens, CommitKind kind) {
  KV_CHECK(num_tokens <= sequence.num_tokens() - sequence.num_committed_);
  const uint32_t block_tokens = layout().block_tokens();
  const uint32_t begin = sequence.num_committed_ / block_tokens;
  sequence.num_committed_ += num_tokens;
  if (!Publishes(sequence)) return;
  const uint32_t end = sequence.num_committed_ / block_tokens;
  for (uint32_t b = begin; b < end; ++b) PublishFull(sequence, b);
  if (kind == CommitKind::kEnd && sequence.num_committed_ % block_tokens != 0 &&
      sequence.num_committed_ == sequence.num_tokens()) {
    PublishTail(sequence);
  }
}

void KvCache::PublishFull(KvSequence& sequence, uint32_t block_index) {
  const uint32_t block_tokens = layout().block_tokens();
  const auto tokens = sequence.tokens().subspan(size_t{block_index} * block_tokens, block_tokens);
  const BlockRef& block = sequence.table_.ref(block_index);
  if (const auto child = index_->FindChild(sequence.node_, tokens)) {
    sequence.node_ = *child;
    // Equal tokens and Identity, so equal bytes: ours goes, unless others still pin it.
    if (index_->block(*child) != block.id()) {
      sequence.table_.Replace(block_index, pool_->Pin(index_->block(*child)));
      ++counters_.deduplicated_blocks;
    }
    return;
  }
  if (FaultActive(Fault::kStaleBlock) && block_index > 0) {
    std::memcpy(pool_->mutable_data(block.id()), sequence.table_.ref(block_index - 1).data(),
                layout().block_bytes());
  }
  Link(sequence.node_, tokens, block);
  sequence.node_ = *index_->node_of(block.id());
  ++counters_.committed_blocks;
}

void KvCache::PublishTail(KvSequence& sequence) {
  const size_t begin =
      sequence.num_committed_ / layout().block_tokens() * size_t{layout().block_tokens()};
  const auto tail = sequence.tokens().subspan(begin);
  const auto best = index_->BestPartial(sequence.node_, tail);
  if (best && best->num_equal == tail.size()) return;  // resident already, in a block that has more
  const BlockRef& block = sequence.table_.ref(sequence.table_.size() - 1);
  // From now on whoever goes on from this tail copies it, the last one too.
  Reservation::State* state = sequence.reserved_.get();
  const bool is_written = !sequence.closed_ || pool_->pin_count(block.id()) > 1;
  if (state != nullptr && !state->released && is_written && !Promise(*state, 1)) return;
  Link(sequence.node_, tail, block);
}

// `block`, which no node holds, becomes the child `tokens`; a tail that it continues is redundant.
// A Cursor at that tail's end stays good: it needs its tokens to be resident, in whichever block.
void KvCache::Link(NodeId parent, std::span<const TokenId> tokens, const BlockRef& block) {
  const auto best = index_->BestPartial(parent, tokens);
  if (best && best->num_equal == index_->tokens(best->node).size()) {
    Unlink(best->node, PrefixIndex::RemoveKind::kForgotten);
  }
  SetFill(block.id(), 0);
  uses_[static_cast<size_t>(block.id())] = {.last = use_clock_};
  policy_->OnInserted(block.id(), FactsOf(index_->Insert(parent, tokens, block.id())));
  pool_->Retain(block.id());
}

void KvCache::KeepCursor(const KvSequence& sequence, std::span<const float> hidden) {
  if (!Publishes(sequence) || sequence.num_committed_ == 0) return;
  const size_t begin =
      sequence.num_committed_ / layout().block_tokens() * size_t{layout().block_tokens()};
  cursors_->Keep(sequence.node_, sequence.tokens().subspan(begin, sequence.num_committed_ - begin),
                 hidden);
}

}  // namespace kvasir
