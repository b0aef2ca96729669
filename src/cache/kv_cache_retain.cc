// KvCache: what becomes of the blocks of a sequence that drops some of its tokens.
#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "base/check.h"
#include "base/result.h"
#include "cache/kv_cache.h"

namespace kvasir {
Status KvCache::Retain(KvSequence& sequence, const RetainedBlocks& retained) {
  const uint32_t num_full = layout().num_full_groups();
  KV_CHECK(num_full > 0 && sequence.num_tokens() == sequence.num_committed_);
  KV_CHECK(retained.first <= sequence.num_tokens() / layout().block_tokens());
  sequence.StopPublishing();
  const uint32_t available = available_blocks();
  const bool is_first = !sequence.retains_;
  uint32_t copied = 0;
  if (is_first) {
    KV_TRY(CopyRetained(sequence, retained, &copied));
    sequence.retains_ = true;
    ReserveKept(sequence, CeilDiv(retained.most_tokens, layout().block_tokens()));
    sequence.most_full_blocks_ =
        num_full *
        (static_cast<uint32_t>(CeilDiv(retained.most_tokens, layout().block_tokens())) + 1);
  }
  if (!std::ranges::equal(retained.kept, sequence.kept_blocks_)) {
    KeepBlocks(sequence, retained.kept);
  }
  for (BlockTable& table : std::span(sequence.tables_).first(num_full)) {
    table.DropBefore(retained.first);
  }
  if (is_first && retained.sequences > 0) {
    reserves_.Settle(sequence, retained.sequences);
    sequence.has_copy_ = false;
    return {};
  }
  const Reservation::State* state = KvReserves::Of(sequence);
  const uint32_t freed = available_blocks() + copied - available;
  if (state == nullptr || freed == 0) return {};
  reserves_.GiveBack(sequence, std::min<uint64_t>(freed, reserves_.RestOf(sequence, *state)));
  return {};
}

// Makes room, so that what it keeps may change without an allocation.
void KvCache::ReserveKept(KvSequence& sequence, size_t num_blocks) {
  sequence.kept_blocks_.reserve(num_blocks);
  kept_places_.reserve(std::max(kept_places_.capacity(), num_blocks));
  sequence.kept_.resize(layout().num_full_groups());
  for (BlockTable& table : sequence.kept_) table.Reserve(num_blocks);
}

// Walks as CopyRetained does, and counts: blocks that neither are in use nor reserved, and those
// that are reserved for the sequence.
bool KvCache::HasRoomToCopy(const KvSequence& sequence, const RetainedBlocks& retained) const {
  const int64_t num_full = layout().num_full_groups();
  const Reservation::State* const state = KvReserves::Of(sequence);
  int64_t reserved = state != nullptr ? state->blocks : 0;
  int64_t others = int64_t{reserves_.available(sequence)} - reserved;
  for (size_t b = sequence.table().size(); b-- > retained.beginning;) {
    const BlockId block = sequence.table().ref(b).id();
    const bool is_own = pool_->pin_count(block) == 1;
    if (b < retained.first && !std::ranges::binary_search(retained.kept, b)) {
      if (is_own) others += num_full;
      continue;
    }
    if (is_own && !pool_->retained(block)) continue;
    if (reserved + others < num_full) return false;
    if (!is_own && retained.sequences > 0 && state != nullptr) {
      if (others < num_full) return false;  // it is reserved before it is taken
      others -= num_full;
      continue;
    }
    const int64_t drawn = std::min(reserved, num_full);
    reserved -= drawn;
    others -= num_full - drawn;
    if (is_own) others += num_full;
  }
  return true;
}

// Copies what a sequence keeps and others may find. Between two blocks it can stop: it then has the
// index's blocks up to there and copies after them. What it drops between two that it keeps is
// released on the way: a pinned block after it would keep an idle original from leaving. So there
// all or nothing is copied.
Status KvCache::CopyRetained(KvSequence& sequence, const RetainedBlocks& retained,
                             uint32_t* copied) {
  const uint32_t num_full = layout().num_full_groups();
  const uint32_t block_tokens = layout().block_tokens();
  const uint32_t beginning = retained.beginning;
  if (sequence.place_.is_current()) {
    NodeId node = sequence.place_.node();
    while (index_->depth(node) > sequence.source_.nodes + beginning) node = index_->parent(node);
    sequence.place_.MoveTo(node);
  }
  const bool has_gaps = !retained.kept.empty() && retained.kept.back() >= beginning;
  if (has_gaps && !HasRoomToCopy(sequence, retained)) {
    return Fail(Code::kExhausted,
                "KV pool: of {} blocks too few are free or idle and not reserved for others, for "
                "copies of what a sequence keeps",
                plan_.num_blocks);
  }
  std::vector<BlockRef> copies(num_full);
  for (size_t b = sequence.table().size(); b-- > beginning;) {
    if (b < retained.first && !std::ranges::binary_search(retained.kept, b)) {
      for (BlockTable& table : std::span(sequence.tables_).first(num_full)) table.Release(b);
      continue;
    }
    const BlockId block = sequence.table().ref(b).id();
    if (!pool_->retained(block) && pool_->pin_count(block) == 1) continue;
    if (reserves_.available(sequence) < num_full) {
      return Fail(Code::kExhausted,
                  "KV pool: {} blocks needed for a copy, {} of {} are free or idle and not "
                  "reserved for others",
                  num_full, reserves_.available(sequence), plan_.num_blocks);
    }
    // The original becomes idle, and can be reserved again; unless others pin it too. Those are not
    // of its request while it is the only one of that with blocks.
    Reservation::State* const state = KvReserves::Of(sequence);
    const bool others_pin = pool_->pin_count(block) > 1 && retained.sequences > 0;
    if (others_pin && state != nullptr) KV_TRY(reserves_.Promise(*state, num_full));
    reserves_.Draw(sequence, num_full);
    const uint64_t rest = sequence.num_tokens() - b * block_tokens;
    for (uint32_t group = 0; group < num_full; ++group) {
      copies[group] = Take(sequence, group);
      std::memcpy(copies[group].mutable_data(), sequence.tables_[group].ref(b).data(),
                  layout().block_bytes());
      uses_.SetLive(copies[group].id(),
                    static_cast<uint32_t>(std::min<uint64_t>(block_tokens, rest)));
    }
    for (uint32_t group = 0; group < num_full; ++group) {
      sequence.tables_[group].Replace(b, std::move(copies[group]));
    }
    if (rest < block_tokens) sequence.has_copy_ = false;  // this was it
    *copied += num_full;
    counters_.copied_blocks += num_full;
  }
  return {};
}

// Makes `kept` the blocks before its tables: some of those that it kept before, and then blocks of
// its tables.
void KvCache::KeepBlocks(KvSequence& sequence, std::span<const uint32_t> kept) {
  std::vector<uint32_t>& places = kept_places_;  // in kept_blocks_, of those that stay
  places.clear();
  for (size_t at = 0; at < sequence.kept_blocks_.size() && places.size() < kept.size(); ++at) {
    if (sequence.kept_blocks_[at] == kept[places.size()]) {
      places.push_back(static_cast<uint32_t>(at));
    }
  }
  const std::span<const uint32_t> more = kept.subspan(places.size());
  KV_CHECK(more.empty() || more[0] >= sequence.table().first());
  sequence.kept_.resize(layout().num_full_groups());
  for (size_t group = 0; group < sequence.kept_.size(); ++group) {
    sequence.kept_[group].KeepOnly(places);
    for (const uint32_t block : more) {
      sequence.kept_[group].Append(sequence.tables_[group].ref(block).Share());
    }
  }
  sequence.kept_blocks_.assign(kept.begin(), kept.end());
}

}  // namespace kvasir
