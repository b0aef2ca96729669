// StoreScan: reads what a store has on the disk into its keys, slots and index.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tier/segment_files.h"
#include "tier/store.h"
#include "tier/store_notes.h"

namespace kvasir {

// The writer calls Run; the reader helps it. Nothing but the headers of records says what is
// stored.
class StoreScan {
 public:
  StoreScan(Store& store, SegmentFiles& segments, StoreNotes& notes)
      : store_(store), segments_(segments), notes_(notes) {}

  // Reads all of the store. REQUIRES: its files are open, and it is not on.
  Status Run();
  // Reads segments until none is left. False: there was none. The reader's thread calls it.
  bool Help();

 private:
  // An owner's key, and its pads: computed once for many records.
  struct ScannedOwner {
    ScannedOwner() = default;
    ScannedOwner(const ScannedOwner&) = delete;
    ~ScannedOwner();  // wipes both

    std::optional<OwnerId> id;
    OwnerKey key;
    std::optional<HmacKey> sealing;
  };
  // What lies in a slot, and where it lies.
  struct ScannedSlot {
    SlotRef slot;
    RecordPlace place;
    uint32_t hour = 0;  // of last use
    std::span<const std::byte> header;
  };
  // What the record's payload is known to do.
  enum class Payload : uint8_t { kUnread, kUnsealed };

  Status ReadKeys();
  Status AddSegments();
  void ScanSegments(uint32_t thread) noexcept;
  IoStatus ScanSegment(uint32_t segment, std::span<std::byte> scratch);
  void ScanRecord(const ScannedSlot& one, std::span<std::byte> tokens, ScannedOwner* owner);
  bool FindOwner(const RecordPublic& record, SlotRef slot, ScannedOwner* owner);
  bool Place(const ScannedSlot& one, const RecordPublic& record, OwnerId owner, bool is_unsealed,
             Payload payload);
  bool CanUnsealPayload(SlotRef slot, const RecordPublic& record, const OwnerKey& key);
  void DropOrphans() KV_REQUIRES(store_.mutex);

  Store& store_;
  SegmentFiles& segments_;
  StoreNotes& notes_;
  std::condition_variable ended_;
  // Returns the namespaces of keys that could be unsealed and that the store has no use for: with
  // unread keys, records of theirs are known to have no owner.
  std::vector<OwnerTag> free_namespaces_ KV_GUARDED_BY(store_.mutex);
  uint32_t next_ KV_GUARDED_BY(store_.mutex) = 0, end_ KV_GUARDED_BY(store_.mutex) = 0;
  uint32_t num_helpers_ KV_GUARDED_BY(store_.mutex) = 0;
  std::optional<int> error_ KV_GUARDED_BY(store_.mutex);
};

}  // namespace kvasir
