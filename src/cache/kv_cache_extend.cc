// KvCache: how sequences get blocks, give them back and share them.
#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "base/check.h"
#include "base/result.h"
#include "cache/kv_cache.h"

namespace kvasir {

Status KvCache::Extend(KvSequence& sequence, std::span<const TokenId> tokens) {
  if (tokens.empty()) return {};
  KV_CHECK(!layout().has_windows() || tokens.size() <= options_.step_tokens);
  KV_CHECK(sequence.source_.is_whole);
  const uint64_t block_tokens = layout().block_tokens();
  const uint64_t old_tokens = sequence.num_tokens();
  const uint64_t new_tokens = old_tokens + tokens.size();
  const size_t tail = old_tokens / block_tokens;  // first block that is written
  const size_t num_blocks = sequence.table().size();
  const uint64_t added =
      (CeilDiv(new_tokens, block_tokens) - num_blocks) * layout().num_own_groups();
  uint64_t copies = 0;
  bool others_pin = false;
  const bool writes_tail = old_tokens % block_tokens != 0;
  if (writes_tail && reserves_.NumCopied(sequence) == 0) reserves_.DropCopy(sequence);
  for (const KvKind& kind : layout().own_kinds()) {
    if (!reserves_.CopiesTail(sequence, kind.first_group)) continue;
    copies += kind.num_groups;
    others_pin |= pool_->pin_count(sequence.tables_[kind.first_group].ref(tail).id()) > 1;
  }
  const uint32_t available = reserves_.available(sequence);
  const bool copy = added + copies <= available;
  if (!copy && (copies == 0 || added > available || others_pin)) {
    return Fail(Code::kExhausted,
                "KV pool: {} blocks needed, {} of {} are free or idle and not reserved for others",
                added + copies, available, plan_.num_blocks);
  }
  reserves_.Draw(sequence, copy ? added + copies : added);
  sequence.has_copy_ = false;
  for (const KvKind& kind : layout().own_kinds()) {
    if (!reserves_.CopiesTail(sequence, kind.first_group)) continue;
    if (copy) {
      CopyTail(sequence, kind);
    } else {
      DropTail(*index_->node_of(sequence.tables_[kind.first_group].ref(tail).id()), kind);
    }
  }
  for (uint32_t group = 0; group < layout().num_own_groups(); ++group) {
    BlockTable& table = sequence.tables_[group];
    while (table.size() * block_tokens < new_tokens) table.Append(Take(sequence, group));
  }
  sequence.tokens_.insert(sequence.tokens_.end(), tokens.begin(), tokens.end());
  for (const BlockTable& table : std::span(sequence.tables_).first(layout().num_own_groups())) {
    for (size_t b = tail; b < table.size(); ++b) {
      uses_.SetLive(table.ref(b).id(),
                    static_cast<uint32_t>(std::min(block_tokens, new_tokens - b * block_tokens)));
    }
  }
  return {};
}

void KvCache::CopyTail(KvSequence& sequence, const KvKind& kind) {
  const size_t tail = sequence.num_tokens() / layout().block_tokens();
  for (uint32_t group = kind.first_group; group < kind.first_group + kind.num_groups; ++group) {
    BlockTable& table = sequence.tables_[group];
    BlockRef block = Take(sequence, group);
    std::memcpy(block.mutable_data(), table.ref(tail).data(), layout().block_bytes());
    table.Replace(tail, std::move(block));
    ++counters_.copied_blocks;
  }
  if (kind.reach.window > 0) reserves_.GiveBack(sequence, kind.num_groups);
}

// Takes the node's blocks of a kind out of the index when no block is left for a copy, so that the
// only sequence that pins them can write to them.
void KvCache::DropTail(NodeId node, const KvKind& kind) {
  if (kind.reach.window > 0) {
    residency_.Detach(node, kind, PrefixIndex::RemoveKind::kEvicted);
    return residency_.Prune(node);
  }
  // They are not pinned, and belong to one owner.
  const AccountId account = uses_.account(*index_->block(node, 0));
  while (index_->has_children(node)) {
    if (!residency_.EvictOne(account, Residency::Victims::kOwn))
      KV_CHECK(residency_.EvictOne(account, Residency::Victims::kAny));
  }
  residency_.Unlink(node, PrefixIndex::RemoveKind::kEvicted);
}

Status KvCache::Truncate(KvSequence& sequence, uint32_t num_tokens) {
  KV_CHECK(num_tokens <= sequence.num_tokens());
  const uint32_t block_tokens = layout().block_tokens();
  if (sequence.retains_ && num_tokens < sequence.num_committed_) {
    return Fail(Code::kNotFound, "KV: tokens before token {} were dropped",
                sequence.num_committed_);
  }
  for (const KvKind& kind : layout().own_kinds()) {
    if (sequence.retains_ && kind.reach.window == 0) continue;
    const size_t first = sequence.tables_[kind.first_group].first();
    const uint64_t needed = WindowBegin(num_tokens, kind.reach.window) / block_tokens;
    if (num_tokens == 0 || first <= needed) continue;
    return Fail(Code::kNotFound, "KV: the window before token {} is gone; it begins at token {}",
                num_tokens, first * block_tokens);
  }
  const uint32_t copied = reserves_.NumCopied(sequence),
                 window_blocks = reserves_.NumWindowBlocks(sequence);
  if (copied == 0) reserves_.DropCopy(sequence);
  const uint32_t num_full = layout().num_full_groups();
  uint32_t popped = 0, freed = 0;
  for (uint32_t group = 0; group < layout().num_own_groups(); ++group) {
    BlockTable& table = sequence.tables_[group];
    const uint32_t available = available_blocks();
    const size_t size = table.size();
    while (table.size() > CeilDiv(num_tokens, block_tokens)) table.PopBack();
    if (group >= num_full) continue;
    popped += static_cast<uint32_t>(size - table.size());
    freed += available_blocks() - available;
  }
  sequence.tokens_.resize(num_tokens);
  const Reservation::State* reserved = KvReserves::Of(sequence);
  // When each sequence computes the prompt itself, its demand counts all blocks of the prompt, so
  // the shared ones are reserved already.
  const uint32_t lost = reserved != nullptr && !reserved->shares_prompt
                            ? freed
                            : popped + reserves_.NumCopied(sequence) - copied;
  if (popped > 0 && reserved != nullptr && reserved->shares_prompt) {
    sequence.has_copy_ = reserves_.NumCopied(sequence) > 0;
  }
  reserves_.GiveBack(sequence, lost + (window_blocks - reserves_.NumWindowBlocks(sequence)));
  sequence.num_committed_ = std::min(sequence.num_committed_, num_tokens);
  if (sequence.place_.is_current()) {
    NodeId node = sequence.place_.node();
    const uint32_t depth = sequence.source_.nodes + sequence.num_committed_ / block_tokens;
    while (index_->depth(node) > depth) node = index_->parent(node);
    sequence.place_.MoveTo(node);
  }
  if (num_tokens % block_tokens == 0) return {};
  for (const BlockTable& table : std::span(sequence.tables_).first(layout().num_own_groups())) {
    const BlockId tail = table.ref(num_tokens / block_tokens).id();
    if (!pool_->retained(tail) && pool_->pin_count(tail) == 1) {
      uses_.SetLive(tail, num_tokens % block_tokens);
    }
  }
  return {};
}

KvSequence KvCache::Fork(const KvSequence& sequence, uint32_t reserve_tokens) {
  KV_CHECK(sequence.source_.is_whole);
  KvSequence fork;
  const uint32_t block_tokens = layout().block_tokens();
  const uint32_t committed = sequence.num_committed_;
  fork.place_ = sequence.place_.Share();
  fork.shares_ = sequence.shares_;
  fork.stores_ = sequence.stores_;
  fork.windows_from_ = sequence.windows_from_;
  fork.account_ = sequence.account_;
  fork.num_committed_ = committed;
  fork.resume_ = sequence.resume_;
  fork.source_ = sequence.source_;
  fork.tokens_.reserve(std::max(reserve_tokens, committed));
  fork.tokens_.assign(sequence.tokens_.begin(), sequence.tokens_.begin() + committed);
  const size_t blocks = CeilDiv(committed, block_tokens);
  fork.tables_.resize(layout().num_groups());
  for (uint32_t group = 0; group < layout().num_own_groups(); ++group) {
    const BlockTable& from = sequence.tables_[group];
    BlockTable& table = fork.tables_[group];
    table.Reserve(CeilDiv(std::max(reserve_tokens, committed), block_tokens));
    table.Skip(std::min(from.first(), blocks));
    for (size_t b = table.size(); b < blocks; ++b) table.Append(from.ref(b).Share());
  }
  fork.has_copy_ = sequence.has_copy_;
  fork.retains_ = sequence.retains_;
  fork.most_full_blocks_ = sequence.most_full_blocks_;
  fork.kept_.resize(sequence.kept_.size());
  if (fork.retains_) ReserveKept(fork, fork.most_full_blocks_ / layout().num_full_groups());
  fork.kept_blocks_ = sequence.kept_blocks_;
  for (size_t group = 0; group < fork.kept_.size(); ++group) {
    const BlockTable& from = sequence.kept_[group];
    for (size_t b = 0; b < from.size(); ++b) fork.kept_[group].Append(from.ref(b).Share());
  }
  for (uint32_t group = layout().num_own_groups(); group < layout().num_groups(); ++group) {
    const BlockTable& from = sequence.tables_[group];
    fork.tables_[group].Reserve(from.size());
    for (size_t b = 0; b < from.size(); ++b) fork.tables_[group].Append(from.ref(b).Share());
  }
  fork.reserved_ = sequence.reserved_;  // last: an unfinished fork must not give back any
  reserves_.Draw(fork, reserves_.NumWindowBlocks(fork));
  return fork;
}

Status KvCache::ForkInto(KvSequence& fork, const KvSequence& sequence) {
  KV_CHECK(&fork != &sequence && fork.reserved_ == sequence.reserved_ && !layout().has_windows());
  KV_CHECK(sequence.num_committed_ == sequence.num_tokens());
  Reservation::State* state = KvReserves::Of(fork);
  const uint64_t rest = state != nullptr ? reserves_.RestOf(fork, *state) : 0;
  for (uint32_t group = 0; group < layout().num_own_groups(); ++group) {
    const BlockTable& from = sequence.tables_[group];
    BlockTable& table = fork.tables_[group];
    size_t same = 0;  // blocks that both have already
    while (same < std::min(table.size(), from.size()) &&
           table.ref(same).id() == from.ref(same).id()) {
      ++same;
    }
    while (table.size() > same) table.PopBack();
    for (size_t b = same; b < from.size(); ++b) table.Append(from.ref(b).Share());
  }
  fork.place_ = sequence.place_.Share();
  fork.num_committed_ = sequence.num_committed_;
  fork.has_copy_ = sequence.has_copy_;
  fork.tokens_.assign(sequence.tokens_.begin(), sequence.tokens_.end());
  if (state == nullptr) return {};
  const uint64_t after = reserves_.RestOf(fork, *state);
  // More is the copy of a tail, for which it gave back its own.
  if (after > rest) return reserves_.Promise(*state, after - rest);
  reserves_.TakeBack(*state,
                     static_cast<uint32_t>(std::min<uint64_t>(rest - after, state->blocks)));
  return {};
}

BlockRef KvCache::Take(const KvSequence& sequence, uint32_t group) {
  BlockRef block = residency_.Take(sequence.ns(), sequence.account_, group);
  // The sequence's namespace was erased: its new blocks must not keep anything either.
  if (!sequence.has_place()) pool_->Scrub(block.id());
  return block;
}

KvCache::Continuation KvCache::Continue(const KvSequence& sequence, std::span<const TokenId> tokens,
                                        std::span<TokenId> drafted) const {
  if (!sequence.has_place() || sequence.ns() == kSharesNothing) return {};
  const auto match = continuations_.Find(Of(sequence.ns()).root, tokens);
  if (!match) return {};
  return {continuations_.Follow(*match, drafted), match->num_equal};
}

KvCache::Pins KvCache::PinsOf(const KvSequence& sequence) const {
  Pins pins;
  for (const std::span<const BlockTable> tables : {sequence.kept(), sequence.tables()}) {
    for (const BlockTable& table : tables) {
      pins.blocks += static_cast<uint32_t>(table.num_held());
      for (size_t b = table.first(); b < table.size(); ++b) {
        pins.shared += pool_->pin_count(table.ref(b).id()) > 1;
      }
    }
  }
  return pins;
}

uint32_t KvCache::OwnTokens(const KvSequence& sequence) const {
  if (layout().num_full_groups() == 0) return sequence.num_committed();
  if (sequence.retains_) return sequence.num_committed();  // as good as: it has copies
  const BlockTable& table = sequence.table();
  // A sequence that pins a block pins those before it.
  size_t low = 0, high = table.size();
  while (low < high) {
    const size_t middle = (low + high) / 2;
    if (pool_->pin_count(table.ref(middle).id()) > 1) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  const uint64_t shared = low * layout().block_tokens();
  return sequence.num_committed() -
         static_cast<uint32_t>(std::min<uint64_t>(shared, sequence.num_committed()));
}

Status KvCache::ExtendSource(KvSequence& sequence) {
  KV_CHECK(!sequence.source_.is_whole && !sequence.HoldsSource());
  const uint64_t num_blocks = layout().SourceBlocks(sequence.source_.tokens);
  const uint32_t available = reserves_.available(sequence);
  if (num_blocks > available) {
    return Fail(Code::kExhausted,
                "KV pool: {} blocks needed for the source, {} of {} are free or idle and not "
                "reserved for others",
                num_blocks, available, plan_.num_blocks);
  }
  reserves_.Draw(sequence, num_blocks);
  const uint32_t block_tokens = layout().block_tokens();
  for (uint32_t group = layout().num_own_groups(); group < layout().num_groups(); ++group) {
    BlockTable& table = sequence.tables_[group];
    for (uint32_t begin = 0; begin < sequence.source_.tokens; begin += block_tokens) {
      table.Append(Take(sequence, group));
      const BlockId block = table.ref(table.size() - 1).id();
      const uint32_t rest = sequence.source_.tokens - begin;
      uses_.SetLive(block, std::min(rest, block_tokens));
      // Its last block stands for the source.
      uses_.set_stands_for_kind(block, group == layout().num_own_groups() && rest <= block_tokens);
    }
  }
  return {};
}

}  // namespace kvasir
