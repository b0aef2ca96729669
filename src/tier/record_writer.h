// RecordWriter: writes the records that wait, in groups that one sync makes durable.
#pragma once

#include <cstdint>
#include <vector>

#include "tier/store.h"
#include "tier/store_room.h"

namespace kvasir {

// A record is called stored only when it would be found after a crash: its group is written and
// synced, and so is all that it depends on. The writer's alone. REQUIRES, for WriteIfDue: the store
// is open.
class RecordWriter {
 public:
  RecordWriter(Store& store, StoreRoom& room);

  // Writes a group, if one is due. False: none is, or nothing could be done now.
  bool WriteIfDue();
  // Drops the group that is under way: the store was left.
  void DropGroup();

 private:
  // A segment that has records of the group.
  struct Touched {
    uint32_t segment;
    OpenedFile file;
    bool has_failed;
  };
  bool WriteGroup();
  void GatherGroup() KV_REQUIRES(store_.mutex);
  bool WriteKeysOfGroup();
  void WriteRecords();
  Touched& Touch(uint32_t segment, uint32_t number);
  IoStatus WriteRecord(uint32_t buffer, FileId file);
  void UnwriteHeader(uint32_t buffer, FileId file);
  void SyncSegments();
  void EndGroup();

  Store& store_;
  StoreRoom& room_;
  std::vector<uint32_t> group_, again_;  // buffers
  std::vector<Touched> touched_;
  bool needs_key_room_ = false;  // the last group's key file did not fit under the cap
};

}  // namespace kvasir
