// StoreKeeper: the writer's thread: opens the store, writes, erases, keeps room, leaves the store.
#pragma once

#include <cstdint>
#include <string>

#include "tier/condemned_slots.h"
#include "tier/progress_call.h"
#include "tier/record_reader.h"
#include "tier/record_writer.h"
#include "tier/segment_files.h"
#include "tier/store.h"
#include "tier/store_erases.h"
#include "tier/store_flushes.h"
#include "tier/store_notes.h"
#include "tier/store_opener.h"
#include "tier/store_room.h"
#include "tier/store_scan.h"

namespace kvasir {

// The writer's alone, except the parts that it gives out, whose own rules hold.
//
// State: waiting (another process has the store; asked each second), broken (the folder failed;
// opened anew after 60 s), on; full is on without room for a segment.
class StoreKeeper {
 public:
  StoreKeeper(Store& store, RecordReader& reader, ProgressCall& progress);

  // Opens the store for the first time. Errors: the folder cannot be used. A fault of what lies in
  // it costs time, not the start: the state is broken then.
  Status OpenFirst();
  // Does what is due. Returns whether it did something. May throw where memory is refused: then the
  // caller leaves the store, for what was under way may be half done.
  bool Step();
  // Forgets the store, until it is opened anew in 60 s.
  void Leave(std::string reason);
  // Leaves the store for good.
  enum class LastNotes : uint8_t { kWritten, kSkipped };
  void Close(LastNotes notes);

  StoreRoom& room() { return room_; }
  StoreScan& scan() { return scan_; }
  StoreFlushes& flushes() { return flushes_; }
  StoreErases& erases() { return erases_; }

 private:
  bool is_on() const;
  Status OpenStore();
  void StayOff(const Error& why);
  void LeaveFailed(std::string reason);
  bool LeaveIfFailed();
  bool LeaveIfGone();
  bool Maintain();
  bool AnswerFlushes();

  Store& store_;
  RecordReader& reader_;
  ProgressCall& progress_;
  SegmentFiles segments_;
  StoreRoom room_;
  StoreNotes notes_;
  CondemnedSlots condemned_;
  RecordWriter writer_;
  StoreFlushes flushes_;
  StoreErases erases_;
  StoreScan scan_;
  StoreOpener opener_;
  uint64_t retry_ns_ = 0, second_ns_ = 0, space_ns_ = 0;  // when these are due
  uint32_t maintained_hour_ = 0;
  bool is_failure_logged_ = false;
};

}  // namespace kvasir
