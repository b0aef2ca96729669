// KvPublisher: puts what sequences have computed into the index.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "block/block_pool.h"
#include "block/kv_layout.h"
#include "cache/block_sealer.h"
#include "cache/cursor_store.h"
#include "cache/kv_reserves.h"
#include "cache/kv_sequence.h"
#include "cache/residency.h"
#include "index/continuations.h"
#include "index/prefix_index.h"
#include "kvasir/cache_counters.h"

namespace kvasir {

enum class CommitKind { kRunning, kEnd };

// The half of KvCache that publishes; KvCache says what each call does. One thread at a time.
class KvPublisher {
 public:
  // What it uses; all must outlive it.
  struct Parts {
    const KvLayout& layout;
    BlockPool& pool;
    PrefixIndex& index;
    Continuations& continuations;
    CursorStore& cursors;
    Residency& residency;
    KvReserves& reserves;
    CacheCounters& counters;
    BlockSealer* sealer;  // nullptr without a tier
  };
  explicit KvPublisher(const Parts& parts) : parts_(parts) {}

  void Commit(KvSequence& sequence, uint32_t num_tokens, CommitKind kind);
  void CommitSource(KvSequence& sequence);
  void KeepCursor(const KvSequence& sequence, std::span<const float> hidden);

 private:
  bool PublishFull(KvSequence& sequence, uint32_t block_index);
  std::optional<NodeId> PublishTail(KvSequence& sequence);
  std::optional<NodeId> Link(NodeId parent, std::span<const TokenId> tokens, KvSequence& sequence,
                             uint32_t block_index);
  void KeepWindows(KvSequence& sequence, uint32_t num_tokens, std::optional<NodeId> tail);
  void KeepWindowsOf(NodeId node, KvSequence& sequence, uint32_t block_index, uint32_t num_tokens);
  void DropWindows(KvSequence& sequence);
  bool LinkSource(KvSequence& sequence);
  void EnterSource(KvSequence& sequence);
  void QueueWrites(NodeId node, const KvKind& kind, uint8_t stores);

  const Parts parts_;
};

}  // namespace kvasir
