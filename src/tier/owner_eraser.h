// OwnerEraser: removes all of an owner from the disk: from the open store, and from the others.
#pragma once

#include <memory>

#include "tier/condemned_slots.h"
#include "tier/erase_files.h"
#include "tier/erase_job.h"
#include "tier/store.h"

namespace kvasir {

// The writer's alone.
class OwnerEraser {
 public:
  OwnerEraser(Store& store, CondemnedSlots& condemned) : store_(store), condemned_(condemned) {}

  // Does the erase: intent, keys, slots, audit; each durable before the next. What fails is done
  // again from the start. The store may be open or not.
  IoStatus Run(EraseJob& job);
  // Goes on with the erases that a crash ended. REQUIRES: the store is not open.
  Status FinishAll(FileId root);

 private:
  IoStatus EraseHere(const StoreFiles& files, EraseJob& job);
  IoStatus FinishOne(FileId root, const EraseIntent& intent);

  Store& store_;
  CondemnedSlots& condemned_;
};

}  // namespace kvasir
