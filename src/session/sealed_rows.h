// SealedRows: DIR/sessions.db, rows that are sealed under the key of their owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "base/shares.h"
#include "session/row_shares.h"
#include "session/rows_database.h"
#include "session/rows_room.h"
#include "session/sealed_rows_options.h"
#include "tier/owner_keys.h"
#include "tier/storage.h"

namespace kvasir {

// What is known of a row without its key. Only `id` and `number` are authenticated, and only when
// the row is unsealed.
struct RowFacts {
  std::string id;
  Digest owner{};       // zero: no key of its owner unseals it
  uint64_t number = 0;  // of its last change
  int64_t used_s = 0;   // since 1970
  uint64_t bytes = 0;   // as it was written, without its seal
};

// A row to add, with number 1.
struct NewRow {
  Digest owner{};
  std::string id;
  int64_t used_s = 0;                // since 1970
  std::span<const std::byte> plain;  // until the next one is asked for
};

// The open file: its process alone has it, by DIR/sessions.lock. Each call is durable when it
// returns, and after a crash at any instant it has happened or it has not. A row is sealed by
// AES-256-GCM under its owner's key in DIR/keys, and bound to its id and number. Errors: kExhausted
// where the file or the folder is full; kUnavailable where the device is, and where another process
// has the file, and says which; kCorruption: not a database, or a damaged row; kUnsupported: of a
// newer version; kIoError, kPermissionDenied: the disk. After an error nothing has changed, except
// that a row whose old bytes could not be scrubbed has its new ones. Thread-safe; calls wait for
// each other and for the disk.
class SealedRows {
 public:
  // Makes the file where it is missing. `storage` must outlive it. An erase that a crash ended goes
  // on. Rows that no key unseals stay as they are: another secret may have made them.
  static Result<std::unique_ptr<SealedRows>> Open(const SealedRowsOptions& options,
                                                  Storage& storage);
  // Removes an owner's key where the file itself cannot be opened. Errors: those of Open.
  static Status RemoveKeyOf(const SealedRowsOptions& options, Storage& storage,
                            const Digest& owner);
  ~SealedRows();
  SealedRows(const SealedRows&) = delete;
  SealedRows& operator=(const SealedRows&) = delete;

  // O(rows).
  Result<std::vector<RowFacts>> List();
  enum class Old : uint8_t { kStays, kScrubbed };  // kScrubbed: its bytes leave the files too
  // Puts a row: number 1 adds one; others replace the row of the number before. `may`: called
  // first; while it runs, and until the row is there, no other call is. kCancelled: it says no.
  // kNotFound: the owner has no such row. kInvalidArgument: the row to add is there already.
  // O(bytes).
  Status Put(const Digest& owner, std::string_view id, uint64_t number, int64_t used_s,
             std::span<const std::byte> plain, Old old, const std::function<bool()>& may = {});
  // Adds the rows that `next` gives until it gives none: all of them, or after an error (also one
  // of `next`) none. `bytes`, `rows`: how much that is at most. kInvalidArgument: a row is there
  // already. O(bytes).
  using NextRow = std::function<Result<std::optional<NewRow>>()>;
  Status AddAll(uint64_t bytes, uint64_t rows, const NextRow& next);
  // Returns the bytes of Put. kNotFound: the owner has no such row. kCorruption: it cannot be
  // unsealed.
  Result<std::vector<std::byte>> Get(const Digest& owner, std::string_view id);
  Status Touch(std::string_view id, int64_t used_s);
  // Removes a row, scrubbed. Removing what is not there is no error.
  Status Remove(const Digest& owner, std::string_view id);
  // Removes rows that were used last before this time and have a key. Returns their ids.
  Result<std::vector<std::string>> RemoveUnused(int64_t least_used_s);
  // Removes the owner's key, which no row of it survives, and then its rows.
  Status RemoveOwner(const Digest& owner);
  // Removes all rows and key files that the secret does not unseal, and files of rows that were set
  // aside. Returns how many rows of this file.
  Result<uint64_t> RemoveUnreadable();
  // Returns what the file and its log may take, and what they take.
  uint64_t max_bytes() const { return max_bytes_; }
  uint64_t bytes() const;
  // Sets how its pages are divided among owners from now on. Waits for nothing.
  void SetWeights(const Shares::Weights& weights);
  bool IsThere();  // its folder and it are where they were
  // Sets what is called with how many bytes of the cap file and log may need, before they grow.
  void set_on_need(std::function<void(uint64_t bytes)> on_need);

 private:
  SealedRows(const SealedRowsOptions& options, Storage& storage, OwnerKeys keys);
  Status OpenFiles();
  Status OpenDatabase();
  Status FinishErases() KV_REQUIRES(mutex_);
  Status RemoveKeyAndRows(const Digest& owner, std::optional<OwnerId> known, const OwnerTag& tag)
      KV_REQUIRES(mutex_);
  Status RemoveRowsOf(const OwnerTag& owner) KV_REQUIRES(mutex_);
  enum class OwnerKeyIs : uint8_t { kKnown, kUnknown };
  Result<std::vector<std::string>> IdsOf(RowStatement& rows, OwnerKeyIs which) KV_REQUIRES(mutex_);
  Status RemoveRows(std::span<const std::string> ids) KV_REQUIRES(mutex_);
  Status RemoveRow(std::string_view id) KV_REQUIRES(mutex_);
  Status AddRows(uint64_t bytes, const NextRow& next, std::vector<Digest>* new_owners)
      KV_REQUIRES(mutex_);
  Result<OwnerId> OwnerFor(const Digest& owner) KV_REQUIRES(mutex_);
  OwnerTag TagOf(OwnerId owner) const KV_REQUIRES(mutex_);
  Status PutRow(OwnerId owner, std::string_view id, uint64_t number, int64_t used_s,
                std::span<const std::byte> plain) KV_REQUIRES(mutex_);
  uint64_t BytesOfRow(std::string_view id) KV_REQUIRES(mutex_);
  Status CheckShare(const Digest& owner, uint64_t old_bytes, uint64_t new_bytes)
      KV_REQUIRES(mutex_);
  Status ReadShares() KV_REQUIRES(mutex_);
  Status CheckPlace() KV_REQUIRES(mutex_);
  Result<OpenedFile> TakeRoom(uint64_t bytes, RowsRoom::For what) KV_REQUIRES(mutex_);
  // Runs a step that may be run again: on a full device with the room that was kept.
  template <typename Step>
  Status Erasing(Step step) KV_REQUIRES(mutex_) {
    Status done = step();
    return done || !room_.GiveKept() ? done : step();
  }

  const SealedRowsOptions options_;
  Storage& storage_;
  const StoreId store_;
  const uint64_t max_bytes_;
  mutable Mutex mutex_;
  OpenedFile root_, keys_folder_, lock_;
  OwnerKeys keys_ KV_GUARDED_BY(mutex_);
  RowsRoom room_ KV_GUARDED_BY(mutex_);
  RowsDatabase database_ KV_GUARDED_BY(mutex_);
  RowShares shares_ KV_GUARDED_BY(mutex_);
  Mutex weights_mutex_;  // taken after the other, which waits for the disk
  // Absent: shares_ has them.
  std::optional<Shares::Weights> new_weights_ KV_GUARDED_BY(weights_mutex_);
};

// What fsck says of the file: each row that cannot be unsealed, and what SQLite finds. Absent: the
// file is missing.
struct RowsCheck {
  uint64_t rows = 0, bytes = 0;
  uint64_t responses = 0;   // of the rows: stored responses
  uint64_t unreadable = 0;  // rows that no key of this secret unseals
  std::vector<std::string> damaged;
  std::optional<std::string> skipped;
};
Result<std::optional<RowsCheck>> CheckRows(const SealedRowsOptions& options, Storage& storage);

}  // namespace kvasir
