// PathForgetter: removes from the open store what was computed after a part of a prompt.
#pragma once

#include <span>
#include <vector>

#include "tier/condemned_slots.h"
#include "tier/erase_job.h"
#include "tier/forget_intent.h"
#include "tier/segment_files.h"
#include "tier/store.h"

namespace kvasir {

// Nothing but the headers says what is stored, so a record is forgotten only when no header of it
// is left anywhere: not in its slot, and no copy in a free slot either, which a start would find
// again. Copies lie where a record was evicted, or where a write failed. So all free slots are
// zeroed that are not known to be zeros. The writer's alone.
class PathForgetter {
 public:
  PathForgetter(Store& store, SegmentFiles& segments, CondemnedSlots& condemned)
      : store_(store), segments_(segments), condemned_(condemned) {}

  // Does the forget: intent, slots, end of the intent; each durable before the next. EBUSY: the
  // store is not open.
  IoStatus Run(EraseJob& job);
  // Goes on with the forget that a crash ended. What it had condemned cannot have been taken since.
  // REQUIRES: the store's files are open, and not read yet.
  IoStatus Finish();

 private:
  IoStatus RemoveUnreadable(EraseJob& job);
  std::vector<RecordName> FirstForgotten(const ForgetFacts& facts);
  bool Begins(const SlotRef& slot, const RecordName& name, const OwnerKey& key,
              const ForgetFacts& facts);
  void CondemnForgotten(const ForgetFacts& facts, std::span<const RecordName> firsts,
                        std::span<const BlockKey> kept, TierErased* erased)
      KV_REQUIRES(store_.mutex);
  void CondemnPath(const ForgetFacts& facts, std::span<const BlockKey> kept, TierErased* erased)
      KV_REQUIRES(store_.mutex);
  void CondemnCopies() KV_REQUIRES(store_.mutex);
  void Condemn(EntryId entry, TierErased* erased) KV_REQUIRES(store_.mutex);
  ForgetIntent CondemnedNow() const KV_REQUIRES(store_.mutex);
  IoStatus FinishSegment(const ForgetIntent::Segment& listed);

  Store& store_;
  SegmentFiles& segments_;
  CondemnedSlots& condemned_;
};

}  // namespace kvasir
