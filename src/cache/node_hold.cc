#include "cache/node_hold.h"

#include <utility>

#include "cache/residency.h"

namespace kvasir {

NodeHold::NodeHold(Residency* residency, NamespaceId ns, NodeId node)
    : residency_(residency), ns_(ns), epoch_(residency->namespaces().Of(ns).epoch), node_(node) {
  ++residency->namespaces().Of(ns).users;
  if (!PrefixIndex::is_root(node)) residency->index().Hold(node);
}

NodeHold NodeHold::Share() const {
  if (is_current()) return NodeHold(residency_.get(), ns_, node_);
  NodeHold stale;
  stale.residency_ = residency_.get();
  stale.ns_ = ns_;
  stale.epoch_ = epoch_;
  stale.node_ = node_;
  if (residency_ != nullptr) ++residency_->namespaces().Of(ns_).users;
  // The place of a removed node stays taken until the last hold is reset.
  if (same_epoch()) residency_->index().Hold(node_);
  return stale;
}

void NodeHold::MoveTo(NodeId node) {
  if (node == node_) return;
  if (!PrefixIndex::is_root(node)) residency_->index().Hold(node);
  const NodeId before = std::exchange(node_, node);
  if (PrefixIndex::is_root(before)) return;
  residency_->index().Unhold(before);
  residency_->Prune(before);
}

void NodeHold::Leave() {
  if (!same_epoch()) return;
  if (!PrefixIndex::is_root(node_)) {
    const bool removed = residency_->index().is_removed(node_);
    residency_->index().Unhold(node_);
    if (!removed) residency_->Prune(node_);
  }
  --epoch_;
}

void NodeHold::Reset() {
  if (residency_ == nullptr) return;
  Leave();
  --residency_->namespaces().Of(ns_).users;
  residency_ = nullptr;
}

bool NodeHold::same_epoch() const {
  return residency_ != nullptr && residency_->namespaces().Of(ns_).epoch == epoch_;
}

bool NodeHold::is_current() const { return same_epoch() && !residency_->index().is_removed(node_); }

}  // namespace kvasir
