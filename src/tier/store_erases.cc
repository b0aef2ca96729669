#include "tier/store_erases.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/log.h"
#include "base/result.h"
#include "base/until_done.h"
#include "tier/spare_file.h"

namespace kvasir {
namespace {

constexpr uint64_t kRetryNs = 60'000'000'000;
constexpr uint64_t kTellAgainNs = 1'000'000;  // a callback had no memory

}  // namespace

StoreErases::StoreErases(Store& store, SegmentFiles& segments, CondemnedSlots& condemned,
                         StoreRoom& room, ProgressCall& progress)
    : store_(store),
      room_(room),
      progress_(progress),
      eraser_(store, condemned),
      forgetter_(store, segments, condemned) {}

// Takes the records out of the index; the writer does the rest, after the group that it writes.
void StoreErases::Erase(const Digest& owner, std::function<void(Result<TierErased>)> done) {
  std::list<EraseJob> jobs(1);
  EraseJob& job = jobs.front();
  job.owner = owner;
  job.folder = store_.options.folder;
  job.key_file_name = KeyFileName(store_.options.secret, owner);
  job.done = std::move(done);
  {
    MutexLock lock(store_.mutex);
    // If this throws, nothing has changed yet.
    store_.leaving.erasing.reserve(store_.leaving.erasing.size() + 1);
    HideOwner(job);
    if (!store_.is_stopping) {
      store_.leaving.erasing.push_back(owner);
      jobs_.splice(jobs_.end(), jobs);
      store_.writer_has_news = true;
      store_.writer_wake.notify_one();
      return;
    }
  }
  job.done(Fail(Code::kUnavailable, "disk tier: it is being closed"));
}

// Takes the owner's records out of the index. Their slots are condemned: none is taken before it is
// zeros; those of writes under way follow them.
void StoreErases::HideOwner(EraseJob& job) {
  job.id = store_.keys.Find(job.owner);
  if (!job.id) return;
  store_.keys.AddUse(*job.id);  // of this job
  store_.keys.Hide(*job.id);
  store_.CancelReadsOf(*job.id);
  store_.CancelWritesOf(*job.id);
  for (uint32_t i = 0; i < store_.records.num_entries(); ++i) {
    const RecordIndex::Record& record = store_.records.entry(i);
    const bool is_stored = record.state == RecordIndex::State::kStored;
    const bool is_here = is_stored || record.state == RecordIndex::State::kWriting;
    if (!is_here || record.owner != *job.id) continue;
    if (is_stored) {
      ++job.erased.blocks;
      job.erased.bytes += store_.options.shape.slot_bytes();
      ++store_.figures.stats.evicted_erase;
    }
    store_.DropRecord(EntryId{i});
  }
  for (uint32_t i = 0; i < store_.segments.max_segments(); ++i) {
    for (uint32_t slot = 0; slot < store_.segments.at(i).shape.slots; ++slot) {
      const SlotRef ref{i, slot};
      const bool is_free = store_.segments.state(ref) == SegmentTable::SlotState::kFree;
      if (is_free && store_.segments.owner(ref) == job.id) store_.segments.Condemn(ref);
    }
  }
}

// Hides the owner; the writer does the rest, after the group that it writes.
void StoreErases::Forget(ForgetFacts facts, std::function<void(Result<TierErased>)> done) {
  std::list<EraseJob> jobs(1);
  EraseJob& job = jobs.front();
  job.owner = facts.owner;
  job.folder = store_.options.folder;
  job.path = std::move(facts);
  job.done = std::move(done);
  {
    MutexLock lock(store_.mutex);
    // If this throws, nothing has changed yet.
    store_.leaving.forgetting.reserve(store_.leaving.forgetting.size() + 1);
    if (!store_.is_stopping) {
      if (const auto id = store_.keys.Find(job.owner)) store_.CancelReadsOf(*id);
      store_.leaving.forgetting.push_back(job.owner);
      jobs_.splice(jobs_.end(), jobs);
      store_.writer_has_news = true;
      store_.writer_wake.notify_one();
      return;
    }
  }
  job.done(Fail(Code::kUnavailable, "disk tier: it is being closed"));
}

// Does the jobs one by one, so that the others are in the list while the disk does not answer.
bool StoreErases::Run(const std::function<void()>& leave) {
  bool has_worked = false;
  for (;;) {
    std::list<EraseJob> jobs;
    {
      MutexLock lock(store_.mutex);
      const auto due = std::ranges::find_if(jobs_, [&](const EraseJob& job) {
        return job.due_ns == 0 || store_.storage.MonotonicNs() >= job.due_ns;
      });
      if (due == jobs_.end()) return has_worked;
      jobs.splice(jobs.end(), jobs_, due);
    }
    EraseJob& job = jobs.front();
    if (!job.is_done) Try(job, leave);
    const bool is_told = AnswerErase(job);
    if (is_told) progress_.Call();
    has_worked |= is_told;
    if (is_told && job.is_done) continue;
    MutexLock lock(store_.mutex);
    job.due_ns = store_.storage.MonotonicNs() + (is_told ? kRetryNs : kTellAgainNs);
    jobs_.splice(jobs_.end(), jobs);
  }
}

// Tries the job, and notes how that ended.
void StoreErases::Try(EraseJob& job, const std::function<void()>& leave) {
  const IoStatus done = TryOnce(job);
  job.is_done = done.has_value();
  if (!done) store_.CountError(&TierStats::fault_write, done.error());
  // Its intent may be there, and whatever it lists: the store is opened anew, which finishes it
  // before anything else is written. So is one in which records of others must stay that no key
  // opens: an abandoned segment with them cannot be removed.
  bool has_unread_keys = false;
  {
    MutexLock lock(store_.mutex);
    has_unread_keys = store_.state.has_unread_keys;
  }
  const bool is_reopened = job.path || (job.has_intent && has_unread_keys);
  if (!done && is_reopened && store_.writing_files != nullptr) {
    UntilDone(leave);
    job.id.reset();
    job.erased = {};
  }
  if (!done && !job.error) {
    Log(LogLevel::kWarning,
        job.has_intent ? "disk tier: an erase failed; it is tried again each minute and at start"
                       : "disk tier: an erase failed before its intent was written; it is tried "
                         "again each minute, but the next start will not know of it",
        LogField("folder", store_.options.folder));
  }
  if (!done) job.error = done.error();
  MutexLock lock(store_.mutex);
  std::vector<Digest>& owners = job.path ? store_.leaving.forgetting : store_.leaving.erasing;
  if (done) owners.erase(std::ranges::find(owners, job.owner));
}

IoStatus StoreErases::TryOnce(EraseJob& job) noexcept {
  try {
    const auto run = [&] { return job.path ? forgetter_.Run(job) : eraser_.Run(job); };
    const IoStatus done = run();
    if (done || !IsFull(done.error())) return done;
    // The first writes of an erase need room: that which was kept for it.
    const IoResult<OpenedFile> root =
        Own(store_.storage, store_.storage.OpenRoot(store_.options.folder));
    if (!root || !GiveSpare(store_.storage, root->id(), kSpareName)) return done;
    const IoStatus again = run();
    room_.KeepRoomToErase(root->id());
    return again;
  } catch (...) {
    return IoFailed(ENOMEM);
  }
}

void StoreErases::ForgetStore() {
  MutexLock lock(store_.mutex);
  for (EraseJob& job : jobs_) job.id.reset();
}

void StoreErases::Refuse() {
  std::list<EraseJob> jobs;
  {
    MutexLock lock(store_.mutex);
    jobs.swap(jobs_);
  }
  for (EraseJob& job : jobs) (void)AnswerErase(job);
}

}  // namespace kvasir
