// DiskTier: erasing an owner, and the queue of erases and forgets.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/fault.h"
#include "base/hex.h"
#include "base/log.h"
#include "base/result.h"
#include "base/until_done.h"
#include "tier/disk_tier.h"
#include "tier/set_aside.h"
#include "tier/spare_file.h"

namespace kvasir {
namespace {

constexpr uint64_t kRetryNs = 60'000'000'000;
constexpr uint64_t kTellAgainNs = 1'000'000;  // a callback had no memory

}  // namespace

// Takes the records out of the index here; the writer does the rest, after the group that it
// writes.
void DiskTier::Erase(const Digest& owner, std::function<void(Result<TierErased>)> done) {
  std::list<EraseJob> jobs(1);
  EraseJob& job = jobs.front();
  job.owner = owner;
  job.folder = store_.options.folder;
  job.key_file_name = KeyFileName(store_.options.secret, owner);
  job.done = std::move(done);
  {
    MutexLock lock(store_.mutex);
    store_.leaving.erasing.reserve(store_.leaving.erasing.size() +
                                   1);  // if this throws, nothing has changed yet
    job.id = store_.keys.Find(owner);
    if (job.id) {
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
      // Nobody takes these slots before they are zeros; those of writes under way follow them.
      for (uint32_t i = 0; i < store_.segments.max_segments(); ++i) {
        for (uint32_t slot = 0; slot < store_.segments.at(i).shape.slots; ++slot) {
          const SlotRef ref{i, slot};
          const bool is_free = store_.segments.state(ref) == SegmentTable::SlotState::kFree;
          if (is_free && store_.segments.owner(ref) == job.id) store_.segments.Condemn(ref);
        }
      }
    }
    if (!store_.is_stopping) {
      store_.leaving.erasing.push_back(owner);
      erases_.splice(erases_.end(), jobs);
      store_.writer_has_news = true;
      store_.writer_wake.notify_one();
      return;
    }
  }
  job.done(Fail(Code::kUnavailable, "disk tier: it is being closed"));
}

// One by one, so that the others are in the list while the disk does not answer.
bool DiskTier::RunErases() {
  bool has_worked = false;
  for (;;) {
    std::list<EraseJob> jobs;
    {
      MutexLock lock(store_.mutex);
      const auto due = std::ranges::find_if(erases_, [&](const EraseJob& job) {
        return job.due_ns == 0 || store_.storage.MonotonicNs() >= job.due_ns;
      });
      if (due == erases_.end()) return has_worked;
      jobs.splice(jobs.end(), erases_, due);
    }
    EraseJob& job = jobs.front();
    if (!job.is_done) {
      const IoStatus done = TryErase(job);
      job.is_done = done.has_value();
      if (!done) store_.CountError(&TierStats::fault_write, done.error());
      // Its intent may be there, and whatever it lists: the store is opened anew, which finishes it
      // before anything else is written.
      if (!done && job.path && store_.writing_files != nullptr) {
        UntilDone([&] { LeaveStore(State::kBroken, "a forget failed"); });
        job.erased = {};
      }
      if (!done && !job.error) {
        Log(LogLevel::kWarning,
            job.has_intent
                ? "disk tier: an erase failed; it is tried again each minute and at start"
                : "disk tier: an erase failed before its intent was written; it is tried "
                  "again each minute, but the next start will not know of it",
            LogField("folder", store_.options.folder));
      }
      if (!done) job.error = done.error();
      MutexLock lock(store_.mutex);
      std::vector<Digest>& owners = job.path ? store_.leaving.forgetting : store_.leaving.erasing;
      if (done) owners.erase(std::ranges::find(owners, job.owner));
    }
    const bool is_told = ReportErase(job);
    if (is_told) progress_.Call();
    has_worked |= is_told;
    if (is_told && job.is_done) continue;
    MutexLock lock(store_.mutex);
    job.due_ns = store_.storage.MonotonicNs() + (is_told ? kRetryNs : kTellAgainNs);
    erases_.splice(erases_.end(), jobs);
  }
}

IoStatus DiskTier::TryErase(EraseJob& job) noexcept {
  try {
    const auto run = [&] { return job.path ? RunForget(job) : RunErase(job); };
    const IoStatus done = run();
    if (done || !IsFull(done.error())) return done;
    // The first writes of an erase need room: that which was kept for it.
    const IoResult<OpenedFile> root =
        Own(store_.storage, store_.storage.OpenRoot(store_.options.folder));
    if (!root || !GiveSpare(store_.storage, root->id(), kSpareName)) return done;
    const IoStatus again = run();
    KeepRoomToErase(root->id());
    return again;
  } catch (...) {
    return IoFailed(ENOMEM);
  }
}

// False: the callback threw; it is called again.
bool DiskTier::ReportErase(EraseJob& job) {
  if (!job.done) return true;
  try {
    if (job.is_done && !job.not_reached.empty()) {
      const size_t more = job.not_reached.size() - 1;
      job.done(Fail(Code::kUnavailable,
                    "memory is erased, and all that can be reached on the disk, but some of it may "
                    "stay in {}/{}{}: links are not followed, and segments of another version or "
                    "shape are not read; remove what a link leads to, then these names ('kvasir "
                    "fsck --remove-unreadable' removes links and segments of another version), and "
                    "ask again",
                    job.folder, job.not_reached.front(),
                    more > 0 ? fmt::format(" and {} more", more) : ""));
    } else if (job.is_done) {
      job.done(job.erased);
    } else if (job.error) {
      job.done(Fail(Code::kUnavailable,
                    "memory is erased, but blocks stay on the disk: cannot erase in {}: {}{}",
                    job.folder, std::strerror(*job.error),
                    job.has_intent ? "" : "; after a restart it must be asked for again"));
    } else {
      job.done(Fail(Code::kUnavailable, "disk tier: it was closed before the erase"));
    }
    job.done = nullptr;
    return true;
  } catch (...) {
    return false;
  }
}

// Intent, keys, slots, audit; each durable before the next. What fails is done again from the
// start.
IoStatus DiskTier::RunErase(EraseJob& job) {
  std::shared_ptr<const StoreFiles> files = store_.writing_files;
  OpenedFile own_root;
  FileId root{};
  if (files != nullptr) {
    root = files->root.id();
  } else {
    IoResult<OpenedFile> opened =
        Own(store_.storage, store_.storage.OpenRoot(store_.options.folder));
    if (!opened) return IoFailed(opened.error());
    own_root = std::move(*opened);
    root = own_root.id();
  }
  const EraseIntent intent{ToHex(store_.id), job.key_file_name};
  if (FaultActive(Fault::kErasedBeforeSync) && job.done) {
    std::exchange(job.done, nullptr)(job.erased);
  }
  const bool is_first_try = !job.error;
  // What was begun before may lack a key already, and still have its slots.
  const IoResult<std::vector<EraseIntent>> begun =
      ListIntents(store_.storage, root, store_.options.secret);
  if (!begun) return IoFailed(begun.error());
  const bool goes_on = !is_first_try || std::ranges::any_of(*begun, [&](const EraseIntent& other) {
    return other.store == intent.store && other.key_file_name == intent.key_file_name;
  });
  const EraseScope scope = goes_on ? EraseScope::kAllStores : EraseScope::kStoresWithKey;
  if (const IoStatus written = WriteIntent(store_.storage, root, store_.options.secret, intent);
      !written) {
    return written;
  }
  job.has_intent = true;
  if (files != nullptr && job.id) {
    // Beside unread keys, a start could not tell slots without a key from those that stay.
    IoStatus zeroed;
    if (HasUnreadKeys()) zeroed = ZeroAllCondemned(AbandonedSegments::kRemoved);
    if (!zeroed) return zeroed;
    const IoResult<bool> removed =
        RemoveKeyFile(store_.storage, files->keys.id(), job.key_file_name);
    if (!removed) return IoFailed(removed.error());
    zeroed = CondemnOrphans();
    if (zeroed) zeroed = ZeroAllCondemned(AbandonedSegments::kRemoved);
    if (!zeroed) return zeroed;
    // Nobody needs the key any more but writes that were cancelled and have not ended.
    MutexLock lock(store_.mutex);
    store_.keys.ReleaseWhenUnused(*job.id);
    store_.keys.EndUse(*job.id);
    job.id.reset();
  } else if (files != nullptr) {
    // The store was opened anew since, or the erase is tried again: the headers tell.
    StoresErased erased;
    const IoStatus done = EraseOwner(store_.storage, files->folder.id(), files->keys.id(),
                                     store_.options.secret, store_.id, job.key_file_name, &erased);
    if (!done) return done;
  }
  const IoResult<StoresErased> others =
      EraseInStores(store_.storage, root, store_.options.secret, job.key_file_name,
                    files != nullptr ? intent.store : "", scope);
  if (!others) return IoFailed(others.error());
  job.erased.blocks += others->blocks;
  job.erased.bytes += others->bytes;
  job.erased.locked_stores = others->locked_stores;
  const StoresErased all{job.erased.blocks, job.erased.bytes, job.erased.locked_stores};
  IoStatus done =
      AppendAudit(store_.storage, root,
                  AuditLine(job.key_file_name, store_.storage.UnixS(), all,
                            is_first_try ? EraseFinish::kFirstTry : EraseFinish::kLater));
  if (done) done = NoteLinks(root, &job);
  if (done) done = RemoveIntent(store_.storage, root, intent);
  return done;
}

// Of a forget only this store matters.
IoStatus DiskTier::NoteLinks(FileId root, EraseJob* job) {
  const auto links = ListLinks(store_.storage, root);
  if (!links) return IoFailed(links.error());
  job->not_reached.clear();
  for (const std::string& link : *links) {
    if (!job->path || link.starts_with(ToHex(store_.id))) job->not_reached.push_back(link);
  }
  return {};
}

bool DiskTier::HasUnreadKeys() const {
  MutexLock lock(store_.mutex);
  return store_.state.has_unread_keys;
}

// Once each key file that is left opens, nobody can claim what has no key.
IoStatus DiskTier::CondemnOrphans() {
  if (!HasUnreadKeys()) return {};
  const auto unread =
      UnreadKeys(store_.storage, store_.writing_files->keys.id(), store_.options.secret, store_.id);
  if (!unread) return IoFailed(unread.error());
  const IoResult<bool> has_links = HasLinkedKeys(store_.storage, store_.writing_files->folder.id());
  if (!has_links) return IoFailed(has_links.error());
  if (!unread->empty() || *has_links) return {};
  MutexLock lock(store_.mutex);
  store_.state.has_unread_keys = false;
  for (uint32_t i = 0; i < store_.segments.max_segments(); ++i) {
    for (uint32_t slot = 0; slot < store_.segments.at(i).shape.slots; ++slot) {
      const SlotRef ref{i, slot};
      const bool is_unread = store_.segments.state(ref) == SegmentTable::SlotState::kUnread;
      if (is_unread) store_.segments.Condemn(ref);
    }
  }
  return {};
}

// Zeros all condemned slots, of whomever, and makes that durable. A sync of an abandoned segment
// says nothing any more, so its file goes, records and all, or is left as it is.
IoStatus DiskTier::ZeroAllCondemned(AbandonedSegments abandoned) {
  uint32_t num_segments;
  {
    MutexLock lock(store_.mutex);
    num_segments = store_.segments.max_segments();
  }
  for (uint32_t index = 0; index < num_segments; ++index) {
    std::vector<uint32_t> slots;
    bool leaves = false;
    {
      MutexLock lock(store_.mutex);
      const SegmentTable::Segment& segment = store_.segments.at(index);
      if (!segment.is_open) continue;
      for (uint32_t slot = 0; slot < segment.shape.slots; ++slot) {
        if (store_.segments.state({index, slot}) == SegmentTable::SlotState::kCondemned) {
          slots.push_back(slot);
        }
      }
      if (segment.is_abandoned && abandoned == AbandonedSegments::kLeft) {
        slots.clear();
      }
      leaves = segment.is_abandoned && segment.readers == 0;
    }
    if (slots.empty()) continue;
    const IoStatus done = leaves ? RemoveSegment(index, EvictCause::kCap) : ZeroSlots(index, slots);
    if (!done) return done;
  }
  return {};
}

// A failure is counted, and the slots stay condemned.
IoStatus DiskTier::ZeroSlots(uint32_t index, const std::vector<uint32_t>& slots) {
  SegmentShape shape;
  uint32_t number;
  {
    MutexLock lock(store_.mutex);
    shape = store_.segments.at(index).shape;
    number = store_.segments.at(index).number;
  }
  const IoResult<OpenedFile> file =
      Own(store_.storage, store_.storage.OpenFile(store_.writing_files->folder.id(),
                                                  SegmentFileName(number), OpenMode::kWrite));
  const IoStatus zeroed =
      file ? EraseSlots(store_.storage, file->id(), shape, slots) : IoFailed(file.error());
  if (!zeroed) {
    store_.CountError(&TierStats::fault_write, zeroed.error());
    return zeroed;
  }
  if (const IoStatus synced = store_.storage.SyncData(file->id()); !synced) {
    store_.CountError(&TierStats::fault_sync, synced.error());
    MutexLock lock(store_.mutex);
    store_.segments.Abandon(index);
    return synced;
  }
  MutexLock lock(store_.mutex);
  for (const uint32_t slot : slots) {
    store_.segments.FreeSlot({index, slot});
    store_.segments.SetZero({index, slot});
  }
  return {};
}

}  // namespace kvasir
