// StoreOpener: opens a store: its folder, what a crash left undone, its records.
#pragma once

#include "tier/store.h"
#include "tier/store_erases.h"
#include "tier/store_room.h"
#include "tier/store_scan.h"

namespace kvasir {

// The writer's alone.
class StoreOpener {
 public:
  StoreOpener(Store& store, SegmentFiles& segments, StoreRoom& room, StoreScan& scan,
              StoreErases& erases)
      : store_(store), segments_(segments), room_(room), scan_(scan), erases_(erases) {}

  // Opens the store, so that its state is on, or waiting where another process has it. Where it
  // fails with open files, the caller leaves the store. REQUIRES: it is not on.
  Status Open();
  // Returns whether the folder was there once, is ours alone, and may be used.
  bool has_folder() const { return has_folder_; }

 private:
  void LogUnread();
  void RemoveUnusedKeys();

  Store& store_;
  SegmentFiles& segments_;
  StoreRoom& room_;
  StoreScan& scan_;
  StoreErases& erases_;
  bool has_folder_ = false;
  bool has_logged_unread_ = false;
};

}  // namespace kvasir
