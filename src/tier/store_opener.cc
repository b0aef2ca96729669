#include "tier/store_opener.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/result.h"
#include "base/system_error.h"
#include "tier/set_aside.h"
#include "tier/unread_files.h"

namespace kvasir {

Status StoreOpener::Open() {
  KV_ASSIGN(OpenedFile root, OpenTierFolder(store_.storage, store_.options.folder));
  const IoResult<SpaceFacts> space = store_.storage.Space(root.id());
  if (!space) return FailErrno(space.error(), "cannot inspect {}", store_.options.folder);
  if (store_.options.needs_durable && !space->is_durable) {
    return Fail(Code::kUnsupported,
                "{} lies on a file system that does not promise to keep what is synced; "
                "name the folder by --disk to use it all the same",
                store_.options.folder);
  }
  has_folder_ = true;
  const IoResult<TreeFacts> tree = store_.storage.TreeBytes(root.id(), kSegmentPrefix);
  if (!tree) return FailErrno(tree.error(), "cannot measure {}", store_.options.folder);
  uint64_t cap = store_.options.planned_cap_bytes();
  if (!store_.options.cap_bytes) {
    cap = std::min(cap, (space->free_bytes + tree->whole_bytes + tree->other_bytes) / 10);
  }
  KV_TRY(erases_.FinishErases(root.id()));
  KV_ASSIGN(std::optional<StoreFiles> files,
            OpenStoreFiles(store_.storage, std::move(root), store_.id));
  {
    MutexLock lock(store_.mutex);
    store_.state.is_durable = space->is_durable;
    store_.state.cap_bytes = cap;
    store_.state.now = files ? TierStats::State::kBroken
                             : TierStats::State::kWaiting;  // broken until it has been read
    store_.state.reason = files ? "the store is being opened" : "another process uses the store";
  }
  if (!files) return {};
  store_.writing_files = std::make_shared<const StoreFiles>(std::move(*files));
  if (const IoStatus finished = erases_.FinishForget(); !finished) {
    return FailErrno(finished.error(), "cannot finish a forget in {}", store_.options.folder);
  }
  KV_TRY(scan_.Run());
  LogUnread();
  RemoveUnusedKeys();
  room_.FitCap();
  room_.KeepRoomToErase(store_.writing_files->root.id());
  room_.NoteRoom();
  {
    MutexLock lock(store_.mutex);
    store_.state.now = TierStats::State::kOn;
    store_.state.reason.clear();
    store_.state.files = store_.writing_files;
    store_.figures.errors.Clear();
    store_.state.must_leave = false;
  }
  room_.ExpireOld();
  return {};
}

// Logs, once, what stays as it is because this secret does not unseal it.
void StoreOpener::LogUnread() {
  if (std::exchange(has_logged_unread_, true)) return;
  const auto unread =
      ListUnread(store_.storage, store_.writing_files->root.id(), store_.options.secret);
  const auto segments = std::ranges::count_if(
      segments_.unusable(), [](const SegmentFiles::Unusable& one) { return one.opens_elsewhere; });
  if (!unread) return;
  // What was set aside was said when it was, and no secret unseals it.
  const auto names = std::ranges::count_if(
      unread->names, [](const std::string& name) { return !NameBeforeAside(name); });
  if (unread->stores.empty() && unread->keys.empty() && names == 0 && segments == 0) return;
  Log(LogLevel::kWarning,
      "disk tier: what the secret of this state folder does not unseal stays as it is; the secret "
      "that made it unseals it (or a newer Kvasir, if that made it), and 'kvasir fsck "
      "--remove-unreadable' removes it",
      LogField("folder", store_.options.folder), LogField("stores", unread->stores.size()),
      LogField("keys", unread->keys.size()), LogField("names", names),
      LogField("segments", segments), LogField("bytes", unread->bytes));
}

// Removes key files of owners that have no record: they would become more and more. Not where
// segments could not be read, which may be of another version.
void StoreOpener::RemoveUnusedKeys() {
  if (!segments_.unusable().empty()) return;
  for (;;) {
    std::string name;
    {
      MutexLock lock(store_.mutex);
      const std::optional<OwnerId> unused = store_.keys.Unused();
      if (!unused) return;
      name = KeyFileName(store_.options.secret, store_.keys.KeyOf(*unused).owner);
      store_.keys.Release(*unused);
    }
    (void)store_.storage.Unlink(store_.writing_files->keys.id(), name);
  }
}

}  // namespace kvasir
