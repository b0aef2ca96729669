// StoreNotes: what a store keeps beside its records: about.json and the hours of last use.
#pragma once

#include "tier/store.h"
#include "tier/store_about.h"

namespace kvasir {

// The writer's alone. REQUIRES, for all calls: the store is open, or being opened.
class StoreNotes {
 public:
  explicit StoreNotes(Store& store) : store_(store) {}

  // Takes over what about.json says of the time before this start.
  void ReadAbout();
  // Writes about.json, if it says something new. Not synced.
  void WriteAbout();
  // Writes the hours of last use, of segments whose records were used. Not synced: they only order
  // eviction.
  void WriteHours();

 private:
  StoreAbout AboutNow() const KV_REQUIRES(store_.mutex);
  IoStatus WriteHoursOf(uint32_t segment, uint32_t number, const SegmentShape& shape);

  Store& store_;
  StoreAbout written_;
};

}  // namespace kvasir
