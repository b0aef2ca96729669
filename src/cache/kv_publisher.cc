#include "cache/kv_publisher.h"

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "base/check.h"
#include "base/fault.h"

namespace kvasir {

void KvPublisher::Commit(KvSequence& sequence, uint32_t num_tokens, CommitKind kind) {
  KV_CHECK(num_tokens <= sequence.num_tokens() - sequence.num_committed_);
  const uint32_t block_tokens = parts_.layout.block_tokens();
  const uint32_t begin = sequence.num_committed_ / block_tokens;
  sequence.num_committed_ += num_tokens;
  const uint32_t committed = sequence.num_committed_, end = committed / block_tokens;
  const bool ends = kind == CommitKind::kEnd;
  if (sequence.source_.key != nullptr && sequence.publishes() &&
      (end > 0 || (ends && committed > 0))) {
    sequence.shares_ = LinkSource(sequence);
  }
  for (uint32_t b = begin; b < end && sequence.publishes(); ++b) {
    // Without a node for this block nothing after it could be found, so the sequence publishes
    // nothing more.
    if (!PublishFull(sequence, b)) sequence.shares_ = false;
  }
  if (sequence.publishes()) {
    std::optional<NodeId> tail;
    if (ends && committed % block_tokens != 0 && committed == sequence.num_tokens()) {
      tail = PublishTail(sequence);
    }
    if (parts_.layout.has_windows() && sequence.source_.key == nullptr) {
      const std::vector<uint32_t>& points = sequence.resume_.all;
      size_t& next = sequence.resume_.next;
      for (size_t i = next; i < points.size() && points[i] <= committed; ++i) {
        KeepWindows(sequence, points[i], tail);
        if (CeilDiv(points[i], block_tokens) <= end) next = i + 1;  // else when its block is full
      }
      if (ends) KeepWindows(sequence, committed, tail);
    }
  }
  DropWindows(sequence);
}

// False when no node is left for it.
bool KvPublisher::PublishFull(KvSequence& sequence, uint32_t block_index) {
  const uint32_t block_tokens = parts_.layout.block_tokens();
  const auto tokens = sequence.tokens().subspan(size_t{block_index} * block_tokens, block_tokens);
  const NodeId parent = sequence.place_.node();
  if (const auto child = parts_.index.FindChild(parent, tokens)) {
    sequence.place_.MoveTo(*child);
    parts_.continuations.Add(*child);
    // Equal tokens and Identity mean equal bytes: the sequence uses the index's block and releases
    // its own, which others may still pin.
    for (uint32_t group = 0; group < parts_.layout.num_full_groups(); ++group) {
      const BlockId theirs = *parts_.index.block(*child, group);
      BlockTable& table = sequence.tables_[group];
      if (theirs == table.ref(block_index).id()) continue;
      table.Replace(block_index, parts_.pool.Pin(theirs));
      ++parts_.counters.deduplicated_blocks;
    }
    return true;
  }
  if (FaultActive(Fault::kStaleBlock) && block_index > 0) {
    const BlockTable& table = sequence.table();
    std::memcpy(parts_.pool.mutable_data(table.ref(block_index).id()),
                table.ref(block_index - 1).data(), parts_.layout.block_bytes());
  }
  const auto node = Link(parent, tokens, sequence, block_index);
  if (!node) return false;
  sequence.place_.MoveTo(*node);
  parts_.continuations.Add(*node);
  parts_.counters.committed_blocks += parts_.layout.num_full_groups();
  return true;
}

// Returns the node of the sequence's tail; absent when no node holds exactly its tokens.
std::optional<NodeId> KvPublisher::PublishTail(KvSequence& sequence) {
  const uint32_t block_index = sequence.num_committed_ / parts_.layout.block_tokens();
  const auto tail = sequence.tokens().subspan(size_t{block_index} * parts_.layout.block_tokens());
  const auto best = parts_.index.BestPartial(sequence.place_.node(), tail);
  if (best && best->num_equal == tail.size()) {  // resident already
    return parts_.index.tokens(best->node).size() == tail.size() ? std::optional(best->node)
                                                                 : std::nullopt;
  }
  // Once the index holds this tail, each sequence that continues it needs a copy, the last one too.
  const uint32_t num_full = parts_.layout.num_full_groups();
  Reservation::State* state = sequence.reserved_.get();
  const bool is_written =
      !sequence.closed_ || parts_.pool.pin_count(sequence.table().ref(block_index).id()) > 1;
  const bool promises = state != nullptr && !state->released && is_written && !sequence.has_copy_;
  if (promises && !parts_.reserves.Promise(*state, num_full)) return std::nullopt;
  const auto node = Link(sequence.place_.node(), tail, sequence, block_index);
  if (promises && !node) parts_.reserves.TakeBack(*state, num_full);
  if (promises && node) sequence.has_copy_ = true;
  return node;
}

// Puts the sequence's block into the index as the child `tokens`. Removes the tail that this block
// continues, whose windows move to the new node. A Cursor at that tail's end stays valid, because
// its tokens are still resident. Absent when no node is left.
std::optional<NodeId> KvPublisher::Link(NodeId parent, std::span<const TokenId> tokens,
                                        KvSequence& sequence, uint32_t block_index) {
  parts_.residency.TakeFor(sequence.ns());
  while (parts_.index.num_nodes() == parts_.index.max_nodes()) {
    if (!parts_.residency.EvictOne(sequence.account_, Residency::Victims::kAny))
      return std::nullopt;
  }
  std::vector<const KvKind*> windows;
  const auto best = parts_.index.BestPartial(parent, tokens);
  if (best && best->num_equal == parts_.index.tokens(best->node).size()) {
    for (const KvKind& kind : parts_.layout.kinds()) {
      if (kind.reach.window > 0 && parts_.index.block(best->node, kind.first_group)) {
        windows.push_back(&kind);
      }
    }
    parts_.residency.Unlink(best->node, PrefixIndex::RemoveKind::kForgotten);
  }
  const NodeId node = parts_.index.Insert(parent, tokens);
  if (parts_.layout.num_full_groups() > 0) {
    parts_.residency.Enter(node, parts_.layout.kinds()[0], sequence.tables_, block_index);
    QueueWrites(node, parts_.layout.kinds()[0], sequence.stores_);
  }
  for (const KvKind* kind : windows) {
    if (block_index < sequence.FirstWindowBlock(parts_.layout, kind->first_group)) continue;
    parts_.residency.Enter(node, *kind, sequence.tables_, block_index);
    QueueWrites(node, *kind, sequence.stores_);
  }
  return node;
}

// Puts the windows before num_tokens into the index, as far as the sequence still holds their
// blocks and these have nodes. `tail`: the node of the sequence's last block, if that is not full.
void KvPublisher::KeepWindows(KvSequence& sequence, uint32_t num_tokens,
                              std::optional<NodeId> tail) {
  const uint32_t block_tokens = parts_.layout.block_tokens();
  const auto end = static_cast<uint32_t>(CeilDiv(num_tokens, block_tokens));
  NodeId node = sequence.place_.node();
  uint32_t depth = parts_.index.depth(node) - sequence.source_.nodes;
  if (end > depth && tail) KeepWindowsOf(*tail, sequence, end - 1, num_tokens);
  while (depth > end) {
    node = parts_.index.parent(node);
    --depth;
  }
  const uint32_t widest = parts_.layout.widest_window();
  const uint32_t first = (num_tokens - std::min(num_tokens, widest)) / block_tokens;
  for (; depth > first; --depth) {
    KeepWindowsOf(node, sequence, depth - 1, num_tokens);
    node = parts_.index.parent(node);
  }
}

void KvPublisher::KeepWindowsOf(NodeId node, KvSequence& sequence, uint32_t block_index,
                                uint32_t num_tokens) {
  for (const KvKind& kind : parts_.layout.kinds()) {
    const uint32_t window = kind.reach.window;
    const BlockTable& table = sequence.tables_[kind.first_group];
    const bool inside =
        uint64_t{block_index + 1} * parts_.layout.block_tokens() + window > num_tokens;
    if (window == 0 || !inside || block_index < table.first()) continue;
    const auto theirs = parts_.index.block(node, kind.first_group);
    if (!theirs) {
      if (block_index < sequence.FirstWindowBlock(parts_.layout, kind.first_group)) continue;
      parts_.residency.Enter(node, kind, sequence.tables_, block_index);
      QueueWrites(node, kind, sequence.stores_);
    } else if (*theirs != table.ref(block_index).id()) {
      for (uint32_t group = kind.first_group; group < kind.first_group + kind.num_groups; ++group) {
        sequence.tables_[group].Replace(block_index,
                                        parts_.pool.Pin(*parts_.index.block(node, group)));
        ++parts_.counters.deduplicated_blocks;
      }
    }
  }
}

// Gives back the blocks that no token after the committed ones sees.
void KvPublisher::DropWindows(KvSequence& sequence) {
  if (!parts_.layout.has_windows()) return;
  const uint32_t before = parts_.reserves.NumWindowBlocks(sequence);
  for (const KvKind& kind : parts_.layout.kinds()) {
    if (kind.reach.window == 0) continue;
    const uint64_t seen = WindowBegin(sequence.num_committed_, kind.reach.window);
    for (uint32_t group = kind.first_group; group < kind.first_group + kind.num_groups; ++group) {
      BlockTable& table = sequence.tables_[group];
      table.DropBefore(std::min<uint64_t>(seen / parts_.layout.block_tokens(), table.size()));
    }
  }
  parts_.reserves.GiveBack(sequence, before - parts_.reserves.NumWindowBlocks(sequence));
}

// Has the node's blocks of a kind sealed for these stores, if it is a whole block.
void KvPublisher::QueueWrites(NodeId node, const KvKind& kind, uint8_t stores) {
  if (parts_.sealer == nullptr || stores == 0) return;
  for (uint32_t group = kind.first_group; group < kind.first_group + kind.num_groups; ++group) {
    parts_.sealer->Push(*parts_.index.block(node, group), stores);
  }
}

void KvPublisher::KeepCursor(const KvSequence& sequence, std::span<const float> hidden) {
  if (!sequence.publishes() || sequence.num_committed_ == 0 || sequence.source_.key != nullptr)
    return;
  const size_t begin =
      sequence.num_committed_ / parts_.layout.block_tokens() * size_t{parts_.layout.block_tokens()};
  parts_.cursors.Keep(sequence.place_.node(),
                      sequence.tokens().subspan(begin, sequence.num_committed_ - begin), hidden);
}

// Gives the source its nodes, and the sequence its place below them. False: there are not enough
// nodes, or another source has the same hash.
bool KvPublisher::LinkSource(KvSequence& sequence) {
  const SourceKey& key = *sequence.source_.key;
  NodeId node = sequence.place_.node();
  if (const auto last = FindSource(parts_.index, node, key)) {
    node = *last;
  } else {
    if (parts_.index.FindChild(node, key.node(0)) || key.num_nodes() > parts_.index.max_nodes())
      return false;
    parts_.residency.TakeFor(sequence.ns());
    while (parts_.index.max_nodes() - parts_.index.num_nodes() < key.num_nodes()) {
      if (!parts_.residency.EvictOne(sequence.account_, Residency::Victims::kAny)) return false;
    }
    for (uint32_t i = 0; i < key.num_nodes(); ++i) node = parts_.index.Insert(node, key.node(i));
  }
  sequence.place_.MoveTo(node);
  sequence.source_.key.reset();
  return true;
}

// Enters the sequence's blocks of its source into the index, at the last nodes of the source,
// unless those of another sequence are there.
void KvPublisher::EnterSource(KvSequence& sequence) {
  const KvKind& kind = parts_.layout.kinds().back();
  NodeId node = sequence.place_.node();
  while (parts_.index.depth(node) > sequence.source_.nodes) node = parts_.index.parent(node);
  const bool theirs = parts_.index.block(node, kind.first_group).has_value();
  for (auto b = static_cast<uint32_t>(sequence.tables_.back().size()); b-- > 0;) {
    if (theirs) {
      for (uint32_t group = kind.first_group; group < parts_.layout.num_groups(); ++group) {
        sequence.tables_[group].Replace(b, parts_.pool.Pin(*parts_.index.block(node, group)));
        ++parts_.counters.deduplicated_blocks;
      }
    } else {
      parts_.residency.Enter(node, kind, sequence.tables_, b);
      parts_.counters.committed_blocks += kind.num_groups;
    }
    node = parts_.index.parent(node);
  }
}

void KvPublisher::CommitSource(KvSequence& sequence) {
  KV_CHECK(!sequence.source_.is_whole && sequence.HoldsSource());
  sequence.source_.is_whole = true;
  if (!sequence.publishes()) return;
  if (sequence.source_.key == nullptr || LinkSource(sequence)) return EnterSource(sequence);
  sequence.shares_ = false;
}

}  // namespace kvasir
