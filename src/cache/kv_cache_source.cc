// Sources of KvCache: how their KV is found, computed, kept and evicted, always whole.
#include <algorithm>

#include "base/bytes.h"
#include "base/check.h"
#include "base/fault.h"
#include "base/result.h"
#include "cache/kv_cache.h"

namespace kvasir {

// The source's last node.
std::optional<NodeId> KvCache::FindSource(NodeId root, const SourceKey& key) const {
  NodeId node = root;
  for (uint32_t i = 0; i < key.num_nodes(); ++i) {
    const auto child = index_->FindChild(node, key.node(i));
    if (!child) return std::nullopt;
    // Under this fault it is any source. Of another length, the walk would end inside the source or
    // behind it, where no blocks stand that Match could pin.
    if (i == 0 && FaultActive(Fault::kSkippedCompare) &&
        !SourceKey::SameSizes(index_->tokens(*child), key.node(0))) {
      return std::nullopt;
    }
    node = *child;
  }
  return node;
}

MissReason KvCache::WhySourceIsMissing(NamespaceId ns, const SourceKey& key) const {
  if (index_->WasEvicted(Of(ns).root, key.node(0), layout().block_tokens() - 1)) {
    return MissReason::kEvicted;
  }
  for (size_t i = 1; i < namespaces_.size(); ++i) {
    const Namespace& space = Of(NamespaceId(i));
    if (NamespaceId(i) == ns || !space.HasOwnerOf(Of(ns))) continue;
    if (FindSource(space.root, key)) return MissReason::kIdentityChanged;
  }
  return MissReason::kCold;
}

// Pins all blocks of the source at whose last node the match stands, or none and says why.
std::optional<MissReason> KvCache::PinSource(MatchResult& match) const {
  const uint32_t first = layout().num_own_groups();
  const auto last = index_->block(match.place_.node(), first);
  if (!last) return MissReason::kEvicted;
  const auto blocks = static_cast<uint32_t>(CeilDiv(match.source_tokens_, layout().block_tokens()));
  if (pool_->pin_count(*last) == 0 &&
      accounts_.available(match.account_) < layout().SourceBlocks(match.source_tokens_)) {
    return MissReason::kPoolFull;
  }
  std::vector<NodeId> path(blocks);
  NodeId node = match.place_.node();
  for (uint32_t b = blocks; b-- > 0; node = index_->parent(node)) path[b] = node;
  for (uint32_t group = first; group < layout().num_groups(); ++group) {
    match.tables_[group].Reserve(blocks);
    for (const NodeId each : path)
      match.tables_[group].Append(pool_->Pin(*index_->block(each, group)));
  }
  return std::nullopt;
}

Status KvCache::ExtendSource(KvSequence& sequence) {
  KV_CHECK(!sequence.has_source_ && !sequence.HoldsSource());
  const uint64_t num_blocks = layout().SourceBlocks(sequence.source_tokens_);
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
    for (uint32_t begin = 0; begin < sequence.source_tokens_; begin += block_tokens) {
      table.Append(Take(sequence, group));
      const BlockId block = table.ref(table.size() - 1).id();
      const uint32_t rest = sequence.source_tokens_ - begin;
      uses_.SetLive(block, std::min(rest, block_tokens));
      // Its last block stands for the source.
      uses_.set_stands_for_kind(block, group == layout().num_own_groups() && rest <= block_tokens);
    }
  }
  return {};
}

void KvCache::CommitSource(KvSequence& sequence) {
  KV_CHECK(!sequence.has_source_ && sequence.HoldsSource());
  sequence.has_source_ = true;
  if (!sequence.publishes()) return;
  if (sequence.source_ == nullptr || LinkSource(sequence)) return EnterSource(sequence);
  sequence.shares_ = false;
}

// The source gets its nodes, and the sequence its place below them. False: there are not enough
// nodes, or another source has the same hash.
bool KvCache::LinkSource(KvSequence& sequence) {
  const SourceKey& key = *sequence.source_;
  NodeId node = sequence.place_.node();
  if (const auto last = FindSource(node, key)) {
    node = *last;
  } else {
    if (index_->FindChild(node, key.node(0)) || key.num_nodes() > index_->max_nodes()) return false;
    residency_.TakeFor(sequence.ns());
    while (index_->max_nodes() - index_->num_nodes() < key.num_nodes()) {
      if (!residency_.EvictOne(sequence.account_, Residency::Victims::kAny)) return false;
    }
    for (uint32_t i = 0; i < key.num_nodes(); ++i) node = index_->Insert(node, key.node(i));
  }
  sequence.place_.MoveTo(node);
  sequence.source_.reset();
  return true;
}

// The sequence's blocks of its source enter the index, at the last nodes of the source, unless
// somebody else's are there.
void KvCache::EnterSource(KvSequence& sequence) {
  const KvKind& kind = layout().kinds().back();
  NodeId node = sequence.place_.node();
  while (index_->depth(node) > sequence.source_nodes_) node = index_->parent(node);
  const bool theirs = index_->block(node, kind.first_group).has_value();
  for (auto b = static_cast<uint32_t>(sequence.tables_.back().size()); b-- > 0;) {
    if (theirs) {
      for (uint32_t group = kind.first_group; group < layout().num_groups(); ++group) {
        sequence.tables_[group].Replace(b, pool_->Pin(*index_->block(node, group)));
        ++counters_.deduplicated_blocks;
      }
    } else {
      residency_.Enter(node, kind, sequence.tables_, b);
      counters_.committed_blocks += kind.num_groups;
    }
    node = index_->parent(node);
  }
}

}  // namespace kvasir
