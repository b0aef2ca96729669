#include "cache/kv_event_log.h"

namespace kvasir {

KvEventLog::KvEventLog(const Options& options)
    : options_(options),
      capacity_(Capacity(options.num_nodes)),
      owner_(options.owner),
      published_(options.num_roots),
      events_(capacity_),
      tokens_(size_t{capacity_} * options.block_tokens) {}

uint64_t KvEventLog::BytesFor(const Options& options) {
  return options.num_roots + Capacity(options.num_nodes) *
                                 (sizeof(Event) + uint64_t{options.block_tokens} * sizeof(TokenId));
}

uint64_t KvEventLog::allocated_bytes() const {
  return published_.capacity() + events_.capacity() * sizeof(Event) +
         tokens_.capacity() * sizeof(TokenId);
}

void KvEventLog::Push(const PrefixIndex& index, NodeId node, bool is_stored) {
  const NodeId parent = index.parent(node);
  const Event event{.key = index.key(node),
                    .node = static_cast<uint32_t>(node),
                    .parent = PrefixIndex::is_root(parent) ? KvEventMirror::kNoParent
                                                           : static_cast<uint32_t>(parent),
                    .is_stored = is_stored};
  if (!is_stored && FaultActive(Fault::kLateRemoval) && !held_) {
    held_ = event;
    return;
  }
  PushEvent(event, index.tokens(node));
  if (held_) PushEvent(*std::exchange(held_, std::nullopt), index.tokens(node));
}

void KvEventLog::PushEvent(const Event& event, std::span<const TokenId> tokens) {
  has_news_ = true;
  const uint64_t at = written_.load(std::memory_order_relaxed);
  if (at - read_.load(std::memory_order_acquire) == capacity_) {
    is_lost_.store(true, std::memory_order_release);
  }
  if (is_lost_.load(std::memory_order_relaxed)) {
    num_lost_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  const size_t slot = at % capacity_;
  events_[slot] = event;
  if (event.is_stored) std::ranges::copy(tokens, &tokens_[slot * options_.block_tokens]);
  written_.store(at + 1, std::memory_order_release);
}

void KvEventLog::Fill(const PrefixIndex& index, KvEventMirror* mirror) {
  mirror->Clear();
  for (uint32_t i = 0; i < index.max_nodes(); ++i) {
    const NodeId node{i};
    if (index.tokens(node).size() != options_.block_tokens || !IsPublished(index, node)) continue;
    const NodeId parent = index.parent(node);
    mirror->Put(
        i, PrefixIndex::is_root(parent) ? KvEventMirror::kNoParent : static_cast<uint32_t>(parent),
        index.key(node), index.tokens(node));
  }
  is_lost_.store(false, std::memory_order_release);
  num_fills_.fetch_add(1, std::memory_order_release);
  has_news_ = true;
}

}  // namespace kvasir
