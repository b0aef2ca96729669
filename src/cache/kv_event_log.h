// KvEventLog: the ring in which the cache notes which blocks enter and leave the index.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/digest.h"
#include "base/fault.h"
#include "cache/kv_event_mirror.h"
#include "index/prefix_index.h"

namespace kvasir {

// Whole blocks of `full` groups under the roots that are published, in the order in which they
// come and go: a parent comes before its children and goes after them, and a node that is used
// again was removed before. The cache's thread never waits here: when the ring is full it drops
// events until the reader asks for all of the index (Fill). Allocates only in its constructor. Two
// threads: the cache's writes, a publisher's reads.
class KvEventLog {
 public:
  struct Options {
    uint32_t num_nodes;  // of the index
    uint32_t block_tokens;
    uint32_t num_roots;
    Digest owner;  // whose prompts are published first (KvCache::OwnerOf)
  };
  // What happened to a node's block.
  struct Event {
    BlockKey key;
    uint32_t node;
    uint32_t parent;  // of a stored block, as KvEventMirror::Block::parent
    bool is_stored;   // else removed
  };

  explicit KvEventLog(const Options& options);
  static uint64_t BytesFor(const Options& options);
  uint64_t allocated_bytes() const;

  // Says whether blocks under this root are published from now on. REQUIRES: it has none, or this
  // is called by SetOwner. Only the cache's thread calls this and all up to Tell.
  void SetPublished(NodeId root, bool is_published) { published_[RootOf(root)] = is_published; }
  // Has the blocks of another owner published from now on, or nothing. `set` calls SetPublished for
  // all roots. As after an erase no event of before may be kept, and a snapshot follows.
  template <typename Set>
  void SetOwner(const std::optional<Digest>& owner, Set&& set) {
    num_begun_.fetch_add(1, std::memory_order_release);
    owner_ = owner;
    set();
    held_.reset();
    is_lost_.store(true, std::memory_order_release);
    num_ended_.fetch_add(1, std::memory_order_release);
    has_news_ = true;
  }
  const std::optional<Digest>& owner() const { return owner_; }  // absent: nothing is published
  const Options& options() const { return options_; }
  // Notes that a node got its blocks of `full` groups, or is about to lose them.
  void OnStored(const PrefixIndex& index, NodeId node) {
    if (IsPublished(index, node)) Push(index, node, true);
  }
  void OnRemoved(const PrefixIndex& index, NodeId node) {
    if (IsPublished(index, node)) Push(index, node, false);
  }
  // Encloses an erase of text under this root: between these two blocks leave in any order, and no
  // event of before may be kept.
  void OnEraseBegins(NodeId root) {
    if (published_[RootOf(root)]) num_begun_.fetch_add(1, std::memory_order_release);
  }
  void OnEraseEnds(NodeId root) {
    if (published_[RootOf(root)]) num_ended_.fetch_add(1, std::memory_order_release);
    has_news_ |= published_[RootOf(root)];
  }
  // Writes all published blocks into the mirror, and goes on after what was lost. O(nodes).
  // REQUIRES: the reader has asked for it, and does not use the mirror until num_fills changes.
  void Fill(const PrefixIndex& index, KvEventMirror* mirror);
  // Wakes the reader where something happened since the last call.
  void Tell() {
    if (std::exchange(has_news_, false) && wake_) wake_();
  }
  // REQUIRES: neither thread runs.
  void set_wake(std::function<void()> wake) { wake_ = std::move(wake); }

  // Calls `visit(event, tokens)` for all events so far, oldest first, and wipes them. Only the
  // reader's thread calls this and is_lost and num_erases.
  template <typename Visit>
  void Take(Visit&& visit);
  bool is_lost() const { return is_lost_.load(std::memory_order_acquire); }
  uint32_t num_fills() const { return num_fills_.load(std::memory_order_acquire); }
  // Counts erases. What is taken while the first number changes must not be published. When both
  // are equal, all events of erases are there to be taken.
  uint32_t num_erases() const { return num_begun_.load(std::memory_order_acquire); }
  uint32_t num_erases_ended() const { return num_ended_.load(std::memory_order_acquire); }
  uint64_t num_lost() const { return num_lost_.load(std::memory_order_relaxed); }  // any thread

 private:
  static constexpr uint32_t kRootBit = uint32_t{1} << 31;
  static uint32_t RootOf(NodeId root) { return static_cast<uint32_t>(root) & ~kRootBit; }
  static uint32_t Capacity(uint32_t num_nodes) { return std::clamp(num_nodes, 64u, 8192u); }
  bool IsPublished(const PrefixIndex& index, NodeId node) const {
    return published_[RootOf(index.root(node))] &&
           index.tokens(node).size() == options_.block_tokens;
  }
  void Push(const PrefixIndex& index, NodeId node, bool is_stored);
  void PushEvent(const Event& event, std::span<const TokenId> tokens);

  const Options options_;
  const uint32_t capacity_;
  std::optional<Digest> owner_;
  std::vector<uint8_t> published_;  // [root]
  std::vector<Event> events_;       // [capacity]
  std::vector<TokenId> tokens_;     // [capacity][block_tokens]
  std::function<void()> wake_;
  bool has_news_ = false;  // since Tell
  // An event that Fault::kLateRemoval holds back until the next one is there.
  std::optional<Event> held_;
  // The release of each counter hands over the slots before it.
  std::atomic<uint64_t> written_ = 0;  // events, by the cache's thread
  std::atomic<uint64_t> read_ = 0;     // events, by the reader
  std::atomic<bool> is_lost_ =
      false;  // by the cache's thread: no Fill since a full ring or SetOwner
  std::atomic<uint32_t> num_fills_ = 0;  // its release hands over the mirror
  // The release of the first comes before the events of an erase, that of the second after them.
  std::atomic<uint32_t> num_begun_ = 0, num_ended_ = 0;
  std::atomic<uint64_t> num_lost_ = 0;  // a statistic: relaxed
};

template <typename Visit>
void KvEventLog::Take(Visit&& visit) {
  const uint64_t end = written_.load(std::memory_order_acquire);
  for (uint64_t at = read_.load(std::memory_order_relaxed); at < end; ++at) {
    const size_t slot = at % capacity_;
    const std::span<TokenId> tokens(&tokens_[slot * options_.block_tokens], options_.block_tokens);
    visit(std::as_const(events_[slot]), std::span<const TokenId>(tokens));
    events_[slot] = {};
    std::ranges::fill(tokens, 0);
    read_.store(at + 1, std::memory_order_release);
  }
}

}  // namespace kvasir
