// SealedRows: adds many rows in one transaction.
#include <utility>

#include "base/result.h"
#include "session/row_seal.h"
#include "session/sealed_rows.h"
#include "tier/key_files.h"

namespace kvasir {

Status SealedRows::AddAll(uint64_t bytes, uint64_t rows, const NextRow& next) {
  const MutexLock lock(mutex_);
  KV_TRY(CheckPlace());
  const uint64_t sealed_bytes = bytes + rows * (kRowSealBytes + kRowsPage);
  const uint64_t growth = RowsLogBytes(sealed_bytes) + sealed_bytes;
  auto room = TakeRoom(growth, RowsRoom::For::kStoring);
  if (!room && room.error().code == Code::kExhausted) {
    room.error().message += "; a larger --disk-cap makes room";
  }
  if (!room) return tl::unexpected(std::move(room).error());
  KV_TRY(database_.Execute("BEGIN IMMEDIATE"));
  std::vector<Digest> new_owners;
  Status done = AddRows(bytes, next, &new_owners);
  if (done) done = database_.Execute("COMMIT");
  shares_.Forget();
  if (done) {
    // The rows are durable. What is left to do may fail without undoing that.
    (void)database_.Scrub();
    room_.Keep();
    return {};
  }
  (void)database_.Execute("ROLLBACK");  // where a failed COMMIT has not done it
  for (const Digest& owner : new_owners) {
    if (const auto id = keys_.Find(owner)) {
      keys_.Hide(*id);
      keys_.Release(*id);
    }
    (void)RemoveKeyFile(storage_, keys_folder_.id(), KeyFileName(options_.secret, owner));
  }
  return done;
}

Status SealedRows::AddRows(uint64_t bytes, const NextRow& next, std::vector<Digest>* new_owners) {
  for (;;) {
    KV_ASSIGN(const std::optional<NewRow> row, next());
    if (!row) return {};
    if (row->plain.size() > bytes) {
      return Fail(Code::kCorruption, "the rows to add are longer than was said");
    }
    bytes -= row->plain.size();
    room_.NoteRow(row->plain.size() + kRowSealBytes);
    if (!keys_.Find(row->owner)) new_owners->push_back(row->owner);
    KV_ASSIGN(const OwnerId owner, OwnerFor(row->owner));
    KV_TRY(PutRow(owner, row->id, 1, row->used_s, row->plain));
  }
}

}  // namespace kvasir
