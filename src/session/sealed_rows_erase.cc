// SealedRows: what removes rows, and the keys that unseal them.
#include <algorithm>
#include <utility>

#include "base/result.h"
#include "base/system_error.h"
#include "session/row_seal.h"
#include "session/row_statement.h"
#include "session/sealed_rows.h"
#include "tier/key_files.h"
#include "tier/store_files.h"
#include "tier/unread_files.h"

namespace kvasir {

Status SealedRows::Remove(const Digest& owner, std::string_view id) {
  const MutexLock lock(mutex_);
  const auto known = keys_.Find(owner);
  if (!known) return {};
  KV_TRY(CheckPlace());
  const OwnerTag tag = TagOf(*known);
  const uint64_t bytes = BytesOfRow(id);
  KV_ASSIGN(const OpenedFile room, TakeRoom(RowsLogBytes(bytes), RowsRoom::For::kErasing));
  Status done = Erasing([&]() KV_REQUIRES(mutex_) -> Status {
    RowStatement remove(database_.handle(), "DELETE FROM sessions WHERE id=? AND owner=?");
    if (remove.Bind(id).Bind(RowOwnerBytes(tag)).Step() != SQLITE_DONE) {
      return database_.Failed("cannot be written");
    }
    if (database_.num_changes() == 1) shares_.Change(owner, bytes, 0);
    return {};
  });
  if (done) done = Erasing([&]() KV_REQUIRES(mutex_) { return database_.Scrub(); });
  room_.Keep();
  return done;
}

// Returns the ids of the rows, of columns id and owner, whose owner's key is known or is not. Ends
// the statement, so that the rows can be removed.
Result<std::vector<std::string>> SealedRows::IdsOf(RowStatement& rows, OwnerKeyIs which) {
  std::vector<std::string> ids;
  int step;
  while ((step = rows.Step()) == SQLITE_ROW) {
    const bool is_known = keys_.FindNamespace(RowOwnerFrom(rows.Blob(1))).has_value();
    if (is_known == (which == OwnerKeyIs::kKnown)) ids.push_back(rows.Text(0));
  }
  if (step != SQLITE_DONE) return database_.Failed("cannot be read");
  return ids;
}

Result<std::vector<std::string>> SealedRows::RemoveUnused(int64_t least_used_s) {
  const MutexLock lock(mutex_);
  KV_TRY(CheckPlace());
  room_.Need(room_.edit_bytes());
  RowStatement rows(database_.handle(), "SELECT id, owner FROM sessions WHERE used<?");
  rows.Bind(least_used_s);
  KV_ASSIGN(const std::vector<std::string> removed, IdsOf(rows, OwnerKeyIs::kKnown));
  if (!removed.empty()) KV_TRY(RemoveRows(removed));
  return removed;
}

Status SealedRows::RemoveRows(std::span<const std::string> ids) {
  shares_.Forget();
  Status done;
  for (const std::string& id : ids) {
    if (done) done = Erasing([&]() KV_REQUIRES(mutex_) { return RemoveRow(id); });
  }
  if (done) done = Erasing([&]() KV_REQUIRES(mutex_) { return database_.Scrub(); });
  room_.KeepAgain();
  return done;
}

Status SealedRows::RemoveRow(std::string_view id) {
  RowStatement remove(database_.handle(), "DELETE FROM sessions WHERE id=?");
  if (remove.Bind(id).Step() != SQLITE_DONE) return database_.Failed("cannot be written");
  return database_.KeepLogShort();
}

// Writes a note, removes the key, then the rows: with the note the next start goes on with it.
Status SealedRows::RemoveOwner(const Digest& owner) {
  const MutexLock lock(mutex_);
  KV_TRY(CheckPlace());
  shares_.Forget();
  room_.Need(room_.edit_bytes());
  const auto known = keys_.Find(owner);
  OwnerTag tag{};
  Status done;
  if (known) {
    tag = TagOf(*known);
    done = Erasing([&]() KV_REQUIRES(mutex_) -> Status {
      RowStatement note(database_.handle(), "INSERT OR IGNORE INTO erased(owner) VALUES(?)");
      if (note.Bind(RowOwnerBytes(tag)).Step() == SQLITE_DONE) return {};
      return database_.Failed("cannot be written");
    });
  }
  if (done) done = RemoveKeyAndRows(owner, known, tag);
  room_.KeepAgain();
  return done;
}

// Removes also the rows of owners whose key went before, and who ask again.
Status SealedRows::RemoveKeyAndRows(const Digest& owner, std::optional<OwnerId> known,
                                    const OwnerTag& tag) {
  // Also where it cannot be unsealed: the rows that it is of are to be erased too.
  const auto removed =
      RemoveKeyFile(storage_, keys_folder_.id(), KeyFileName(options_.secret, owner));
  if (!removed) {
    RowStatement undo(database_.handle(), "DELETE FROM erased WHERE owner=?");
    if (known) (void)undo.Bind(RowOwnerBytes(tag)).Step();
    return FailErrno(removed.error(), "cannot remove a key in {}/{}", options_.folder,
                     kRowsKeysName);
  }
  if (known) keys_.Release(*known);
  KV_TRY(Erasing([&]() KV_REQUIRES(mutex_) { return FinishErases(); }));
  return Erasing([&]() KV_REQUIRES(mutex_) { return database_.Scrub(); });
}

// Goes on with what RemoveOwner began: only its note tells the rows of an erased owner from those
// of another secret.
Status SealedRows::FinishErases() {
  KV_TRY(database_.Execute("DELETE FROM erased WHERE length(owner)<>16"));
  for (;;) {
    OwnerTag tag;
    {
      RowStatement next(database_.handle(), "SELECT owner FROM erased LIMIT 1");
      const int step = next.Step();
      if (step == SQLITE_DONE) return {};
      if (step != SQLITE_ROW) return database_.Failed("cannot be read");
      tag = RowOwnerFrom(next.Blob(0));
    }
    if (const auto known = keys_.FindNamespace(tag)) {
      const std::string name = KeyFileName(options_.secret, keys_.owner_of(*known));
      const auto removed = RemoveKeyFile(storage_, keys_folder_.id(), name);
      if (!removed)
        return FailErrno(removed.error(), "cannot finish an erase in {}", options_.folder);
      keys_.Release(*known);
    }
    KV_TRY(RemoveRowsOf(tag));
  }
}

// Removes row by row: the log of one transaction may have no room for all. Then it removes the note
// of the erase.
Status SealedRows::RemoveRowsOf(const OwnerTag& tag) {
  for (;;) {
    RowStatement remove(database_.handle(),
                        "DELETE FROM sessions WHERE rowid=(SELECT rowid FROM sessions WHERE "
                        "owner=? LIMIT 1)");
    if (remove.Bind(RowOwnerBytes(tag)).Step() != SQLITE_DONE)
      return database_.Failed("cannot be written");
    if (database_.num_changes() == 0) break;
    KV_TRY(database_.KeepLogShort());
  }
  RowStatement remove(database_.handle(), "DELETE FROM erased WHERE owner=?");
  if (remove.Bind(RowOwnerBytes(tag)).Step() != SQLITE_DONE)
    return database_.Failed("cannot be written");
  return {};
}

Result<uint64_t> SealedRows::RemoveUnreadable() {
  const MutexLock lock(mutex_);
  KV_TRY(CheckPlace());
  room_.Need(room_.edit_bytes());
  RowStatement rows(database_.handle(), "SELECT id, owner FROM sessions");
  KV_ASSIGN(const std::vector<std::string> ids, IdsOf(rows, OwnerKeyIs::kUnknown));
  KV_TRY(RemoveRows(ids));
  const auto keys = RemoveUnreadKeys(storage_, keys_folder_.id(), options_.secret, store_);
  if (!keys) {
    return FailErrno(keys.error(), "cannot remove a key in {}/{}", options_.folder, kRowsKeysName);
  }
  const IoStatus asides = RemoveAsidesOfRows(storage_, root_.id());
  if (!asides) return FailErrno(asides.error(), "cannot remove a file in {}", options_.folder);
  return ids.size();
}

}  // namespace kvasir
