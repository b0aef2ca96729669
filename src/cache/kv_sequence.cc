// NodeHold and KvSequence: what a sequence takes along when it moves, and gives back at its end.
#include <algorithm>
#include <utility>

#include "cache/kv_cache.h"

namespace kvasir {

NodeHold::NodeHold(KvCache* cache, NamespaceId ns, NodeId node)
    : cache_(cache), ns_(ns), epoch_(cache->Of(ns).epoch), node_(node) {
  ++cache->Of(ns).users;
  if (!PrefixIndex::is_root(node)) cache_->index_->Hold(node);
}

NodeHold::NodeHold(NodeHold&& other) noexcept
    : cache_(std::exchange(other.cache_, nullptr)),
      ns_(other.ns_),
      epoch_(other.epoch_),
      node_(other.node_) {}

NodeHold& NodeHold::operator=(NodeHold&& other) noexcept {
  if (this == &other) return *this;
  Reset();
  cache_ = std::exchange(other.cache_, nullptr);
  ns_ = other.ns_;
  epoch_ = other.epoch_;
  node_ = other.node_;
  return *this;
}

NodeHold NodeHold::Share() const {
  if (is_current()) return NodeHold(cache_, ns_, node_);
  NodeHold stale;
  stale.cache_ = cache_;
  stale.ns_ = ns_;
  stale.epoch_ = epoch_;
  stale.node_ = node_;
  if (cache_ != nullptr) ++cache_->Of(ns_).users;
  // Of a removed node: its place stays taken until the last one is reset.
  if (same_epoch()) cache_->index_->Hold(node_);
  return stale;
}

void NodeHold::MoveTo(NodeId node) {
  if (node == node_) return;
  if (!PrefixIndex::is_root(node)) cache_->index_->Hold(node);
  const NodeId before = std::exchange(node_, node);
  if (PrefixIndex::is_root(before)) return;
  cache_->index_->Unhold(before);
  cache_->Prune(before);
}

void NodeHold::Leave() {
  if (!same_epoch()) return;
  if (!PrefixIndex::is_root(node_)) {
    const bool removed = cache_->index_->is_removed(node_);
    cache_->index_->Unhold(node_);
    if (!removed) cache_->Prune(node_);
  }
  --epoch_;
}

void NodeHold::Reset() {
  if (cache_ == nullptr) return;
  Leave();
  --cache_->Of(ns_).users;
  cache_ = nullptr;
}

bool NodeHold::same_epoch() const { return cache_ != nullptr && cache_->Of(ns_).epoch == epoch_; }

bool NodeHold::is_current() const { return same_epoch() && !cache_->index_->is_removed(node_); }

void KvSequence::AddResumePoint(uint32_t point) {
  const auto at = std::ranges::lower_bound(resume_points_, point);
  if (at != resume_points_.end() && *at == point) return;
  if (point <= num_committed_) return;
  resume_points_.insert(at, point);
}

void KvSequence::Close() {
  if (reserved_ != nullptr) reserved_->cache->ReleaseRest(*this);
  closed_ = true;
}

KvSequence& KvSequence::operator=(KvSequence&& other) noexcept {
  if (this == &other) return *this;
  Close();
  // Releases the blocks before the hold on their node, so that the node is bare if nothing else
  // needs it.
  tables_ = std::move(other.tables_);
  place_ = std::move(other.place_);
  shares_ = other.shares_;
  stores_ = other.stores_;
  windows_from_ = other.windows_from_;
  account_ = other.account_;
  num_committed_ = std::exchange(other.num_committed_, 0);
  closed_ = other.closed_;
  unbacked_ = other.unbacked_;
  reserved_ = std::move(other.reserved_);
  tokens_ = std::move(other.tokens_);
  resume_points_ = std::move(other.resume_points_);
  next_resume_ = other.next_resume_;
  source_tokens_ = other.source_tokens_;
  source_nodes_ = other.source_nodes_;
  has_source_ = other.has_source_;
  source_ = std::move(other.source_);
  return *this;
}

}  // namespace kvasir
