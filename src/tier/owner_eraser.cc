#include "tier/owner_eraser.h"

#include <algorithm>
#include <utility>

#include "base/fault.h"
#include "base/hex.h"
#include "base/result.h"
#include "base/system_error.h"
#include "tier/erase_files.h"
#include "tier/key_files.h"
#include "tier/spare_file.h"

namespace kvasir {

IoStatus OwnerEraser::Run(EraseJob& job) {
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
  const IoStatus written = WriteIntent(store_.storage, root, store_.options.secret, intent);
  // Without a key, and without an earlier try, nothing stays, also where a full device takes no
  // intent and no audit. Key folders may be large: they are read for it only where there is no
  // intent.
  const bool may_find_some =
      written || goes_on || MayHaveKeyInStores(store_.storage, root, job.key_file_name);
  const auto has_failed = [&](const IoStatus& one) {
    return !one && (may_find_some || !IsFull(one.error()));
  };
  if (has_failed(written)) return written;
  job.has_intent = written.has_value();
  if (files != nullptr) {
    if (const IoStatus erased = EraseHere(*files, job); !erased) return erased;
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
  if (has_failed(done)) return done;
  done = NoteLinks(store_, root, &job);
  if (done) done = RemoveIntent(store_.storage, root, intent);
  return done;
}

// Erases the owner in the open store: its key file, then its slots.
IoStatus OwnerEraser::EraseHere(const StoreFiles& files, EraseJob& job) {
  if (!job.id) {
    // The store was opened anew since, or the erase is tried again: the headers tell.
    StoresErased erased;
    return EraseOwner(store_.storage, files.folder.id(), files.keys.id(), store_.options.secret,
                      store_.id, job.key_file_name, &erased);
  }
  // Beside unread keys, a start could not tell slots without a key from those that stay.
  IoStatus zeroed;
  if (condemned_.HasUnreadKeys()) zeroed = condemned_.ZeroAll(AbandonedSegments::kRemoved);
  if (!zeroed) return zeroed;
  const IoResult<bool> removed = RemoveKeyFile(store_.storage, files.keys.id(), job.key_file_name);
  if (!removed) return IoFailed(removed.error());
  zeroed = condemned_.CondemnOrphans();
  if (zeroed) zeroed = condemned_.ZeroAll(AbandonedSegments::kRemoved);
  if (!zeroed) return zeroed;
  // The key is needed only by writes that were cancelled and have not ended.
  MutexLock lock(store_.mutex);
  store_.keys.ReleaseWhenUnused(*job.id);
  store_.keys.EndUse(*job.id);
  job.id.reset();
  return {};
}

Status OwnerEraser::FinishAll(FileId root) {
  const IoResult<std::vector<EraseIntent>> intents =
      ListIntents(store_.storage, root, store_.options.secret);
  if (!intents) return FailErrno(intents.error(), "cannot list {}", store_.options.folder);
  for (const EraseIntent& intent : *intents) {
    if (const IoStatus done = FinishOne(root, intent); !done) {
      return FailErrno(done.error(), "cannot finish an erase in {}", store_.options.folder);
    }
  }
  return {};
}

IoStatus OwnerEraser::FinishOne(FileId root, const EraseIntent& intent) {
  const IoResult<bool> locked = IsStoreLocked(store_.storage, root, intent.store);
  if (!locked) return IoFailed(locked.error());
  if (*locked) return {};  // the process that began it is still at it
  const IoResult<StoresErased> erased =
      EraseInStores(store_.storage, root, store_.options.secret, intent.key_file_name, "",
                    EraseScope::kAllStores);
  if (!erased) return IoFailed(erased.error());
  const IoStatus done = AppendAudit(
      store_.storage, root,
      AuditLine(intent.key_file_name, store_.storage.UnixS(), *erased, EraseFinish::kLater));
  return done ? RemoveIntent(store_.storage, root, intent) : done;
}

}  // namespace kvasir
