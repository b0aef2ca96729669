// StoreErases: the queue of erases and forgets, each tried until it succeeds.
#pragma once

#include <functional>
#include <list>

#include "tier/erase_job.h"
#include "tier/owner_eraser.h"
#include "tier/path_forgetter.h"
#include "tier/progress_call.h"
#include "tier/store.h"
#include "tier/store_room.h"

namespace kvasir {

// Erase and Forget are thread-safe; the writer calls the others.
class StoreErases {
 public:
  StoreErases(Store& store, SegmentFiles& segments, CondemnedSlots& condemned, StoreRoom& room,
              ProgressCall& progress);

  // Does what Tier::Erase and Tier::Forget say.
  void Erase(const Digest& owner, std::function<void(Result<TierErased>)> done);
  void Forget(ForgetFacts facts, std::function<void(Result<TierErased>)> done);

  // Does the erases that are due. Returns whether it did something. `leave` leaves the store, where
  // a forget has failed.
  bool Run(const std::function<void()>& leave);
  // Drops what the jobs know of the store: it was left.
  void ForgetStore();
  // Answers all: they are not done any more. Any thread.
  void Refuse();

  // Goes on with what a crash ended: erases before the store is opened, a forget before it is read.
  Status FinishErases(FileId root) { return eraser_.FinishAll(root); }
  IoStatus FinishForget() { return forgetter_.Finish(); }

 private:
  void HideOwner(EraseJob& job) KV_REQUIRES(store_.mutex);
  void Try(EraseJob& job, const std::function<void()>& leave);
  IoStatus TryOnce(EraseJob& job) noexcept;

  Store& store_;
  StoreRoom& room_;
  ProgressCall& progress_;
  OwnerEraser eraser_;
  PathForgetter forgetter_;
  // A list, so that a job moves without memory: none may be lost.
  std::list<EraseJob> jobs_ KV_GUARDED_BY(store_.mutex);
};

}  // namespace kvasir
