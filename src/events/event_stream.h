// EventStream: makes numbered batches of what the cache notes, keeps the last ones, and repeats all
// that the pool holds where somebody needs it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/digest.h"
#include "base/secret.h"
#include "cache/kv_event_log.h"
#include "cache/kv_event_mirror.h"
#include "events/event_payload.h"
#include "events/event_writer.h"
#include "kvasir/kv_events.h"

namespace kvasir {

// A snapshot is one batch: AllBlocksCleared, then every published block after its parent. It comes
// where it is asked for and after events were lost, at most once a second. After an erase all that
// is kept is dropped, and the next batch is a snapshot too; until then there are no others.
// One thread at a time; payloads may outlive their batches on other threads, but not this.
class EventStream {
 public:
  static constexpr size_t kMostKept = 10'000;                     // batches
  static constexpr uint64_t kMostKeptBytes = uint64_t{16} << 20;  // in them
  static constexpr uint64_t kSnapshotPauseNs = 1'000'000'000;
  // How long a batch from before an erase may wait for a slow subscriber.
  static constexpr uint64_t kErasePauseNs = 1'000'000'000;

  struct Options {
    KvEventsFormat format = KvEventsFormat::kMap;
    uint32_t num_nodes = 0;
    uint32_t block_tokens = 0;
    Secret hash_key{};  // of the hashes of blocks: random, of this process
    // Above all that an earlier process of this address has used.
    uint64_t first_sequence = 0;
    // Asks the cache's thread for KvEventLog::Fill of mirror().
    std::function<void()> ask_fill;
    // Frees all payloads that wait for sockets.
    std::function<void()> drop_queues;
  };
  // `log` must outlive this.
  EventStream(Options options, KvEventLog& log);
  // Returns planned memory: tables, allocated at start, and what payloads may take.
  static uint64_t TableBytes(uint32_t num_nodes, uint32_t block_tokens);
  static uint64_t MostPayloadBytes(uint32_t num_nodes, uint32_t block_tokens);
  uint64_t allocated_bytes() const;  // equals TableBytes
  KvEventMirror& mirror() { return mirror_; }

  void AskSnapshot() { wants_snapshot_ = true; }
  // Takes what the log has. Returns the batch that is to be sent; absent: nothing has changed.
  std::optional<EventBatch> Advance(uint64_t now_ns, double unix_s);
  // Returns when Advance must be called though nothing happened meanwhile; absent: never.
  std::optional<uint64_t> due_ns() const;
  // Returns the batches from this number on, oldest first; absent: some of them are not kept, or
  // only the next snapshot says what is erased or lost.
  std::optional<std::vector<EventBatch>> From(uint64_t sequence) const;

 private:
  struct ErasedAge {
    std::weak_ptr<const int> age;
    uint64_t end_ns;
  };
  void NoteErases(uint64_t now_ns);
  void DropErased(uint64_t now_ns);
  void Lose(uint64_t now_ns);
  void Apply(const KvEventLog::Event& event, std::span<const TokenId> tokens);
  void WriteSnapshot();
  void WriteBlock(uint32_t node);
  uint64_t HashOf(uint32_t node);
  EventBatch Keep(std::span<const std::byte> bytes, bool is_snapshot);

  const Options options_;
  const HmacKey hash_key_;
  KvEventLog& log_;
  KvEventMirror mirror_;
  EventWriter writer_;
  std::vector<uint32_t> told_;  // [node]: of which snapshot it is a part
  std::vector<uint32_t> path_;  // of WriteSnapshot; kept for its capacity
  uint32_t num_snapshots_ = 0;
  const std::shared_ptr<EventMemory> memory_ = std::make_shared<EventMemory>();
  std::deque<EventBatch> kept_;
  uint64_t kept_bytes_ = 0;
  uint64_t next_sequence_;
  std::shared_ptr<const int> age_;
  std::vector<ErasedAge> erased_;
  uint32_t num_erases_ = 0;  // KvEventLog::num_erases, as noted last
  uint64_t next_snapshot_ns_ = 0;
  bool wants_snapshot_ = false;
  bool is_silent_ = false;  // no batch is made until the next snapshot
  // KvEventLog::num_fills when a fill was asked for: until it changes, the mirror is the cache's
  // thread's. Absent: no fill is asked for.
  std::optional<uint32_t> fills_before_;
};

}  // namespace kvasir
