#include "session/sealed_rows.h"

#include <sqlite3.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/result.h"
#include "base/sizes.h"
#include "base/system_error.h"
#include "session/row_seal.h"
#include "session/row_statement.h"
#include "tier/key_files.h"
#include "tier/set_aside.h"
#include "tier/spare_file.h"
#include "tier/store_files.h"

namespace kvasir {
namespace {

constexpr std::string_view kRowsPurpose = "kvasir sessions";

StoreId RowsStoreOf(const Secret& secret) {
  const Digest digest = HmacKey(secret).Of(std::as_bytes(std::span(kRowsPurpose)));
  StoreId id;
  std::memcpy(id.data(), digest.data(), id.size());
  return id;
}

Error DamagedRow(std::string_view id) {
  return {Code::kCorruption,
          fmt::format("the session {} is damaged in sessions.db, and cannot be unsealed", id)};
}

}  // namespace

SealedRows::SealedRows(const SealedRowsOptions& options, Storage& storage, OwnerKeys keys)
    : options_(options),
      storage_(storage),
      store_(RowsStoreOf(options.secret)),
      max_bytes_(options.cap_bytes / 8 / kRowsPage * kRowsPage),
      keys_(std::move(keys)),
      room_(options_, storage, max_bytes_),
      database_(options_, storage, room_),
      shares_(max_bytes_) {}

SealedRows::~SealedRows() {
  if (database_.handle() != nullptr && !options_.only_looks) (void)database_.Scrub();
}

Result<std::unique_ptr<SealedRows>> SealedRows::Open(const SealedRowsOptions& options,
                                                     Storage& storage) {
  KV_ASSIGN(OwnerKeys keys, OwnerKeys::Create(OwnerKeys::kMaxOwners));
  std::unique_ptr<SealedRows> rows(new SealedRows(options, storage, std::move(keys)));
  KV_TRY(rows->OpenFiles());
  Status opened = rows->OpenDatabase();
  if (!opened && opened.error().code == Code::kCorruption && options.sets_aside &&
      !options.only_looks) {
    // An erase of an owner covers what is set aside: its key, which unseals the rows there, goes.
    {
      const MutexLock lock(rows->mutex_);
      KV_TRY(rows->database_.SetAside());
    }
    opened = rows->OpenDatabase();
  }
  if (!opened) return tl::unexpected(opened.error());
  return rows;
}

Status SealedRows::RemoveKeyOf(const SealedRowsOptions& options, Storage& storage,
                               const Digest& owner) {
  KV_ASSIGN(OwnerKeys keys, OwnerKeys::Create(OwnerKeys::kMaxOwners));
  SealedRows rows(options, storage, std::move(keys));
  KV_TRY(rows.OpenFiles());
  const auto removed =
      RemoveKeyFile(storage, rows.keys_folder_.id(), KeyFileName(options.secret, owner));
  if (removed) return {};
  return FailErrno(removed.error(), "cannot remove a key in {}/{}", options.folder, kRowsKeysName);
}

Status SealedRows::OpenFiles() {
  KV_ASSIGN(root_, OpenTierFolder(storage_, options_.folder));
  {
    const MutexLock lock(mutex_);
    room_.Begin(root_.id());
  }
  auto lock = OpenLockFile(storage_, root_.id(), std::string(kRowsLockName));
  if (!lock) {  // also where the folder is read-only: what lies in it may come back
    return Fail(Code::kIoError, "cannot open {}/{}: {}", options_.folder, kRowsLockName,
                std::strerror(lock.error()));
  }
  const IoResult<bool> locked = storage_.TryLock(lock->id());
  if (!locked)
    return FailErrno(locked.error(), "cannot lock {}/{}", options_.folder, kRowsLockName);
  if (!*locked) {
    const auto text = ReadSmallFile(storage_, root_.id(), std::string(kRowsLockName), 64);
    const auto pid = ParseUint(text ? text->substr(0, text->find('\n')) : "");
    return Fail(Code::kUnavailable, "the sessions in {} are open in another process{}",
                options_.folder, pid ? fmt::format(", {}", *pid) : "");
  }
  lock_ = std::move(*lock);
  const std::string pid = fmt::format("{:<15}\n", fmt::format("{}\n", getpid()));
  (void)WriteAll(storage_, lock_.id(), std::as_bytes(std::span(pid)), 0);
  auto keys = OpenOrMake(storage_, root_.id(), std::string(kRowsKeysName));
  if (!keys) return FailErrno(keys.error(), "cannot open {}/{}", options_.folder, kRowsKeysName);
  keys_folder_ = std::move(*keys);
  auto loaded = LoadKeys(storage_, keys_folder_.id(), options_.secret, store_);
  if (!loaded)
    return FailErrno(loaded.error(), "cannot read {}/{}", options_.folder, kRowsKeysName);
  const MutexLock mutex(mutex_);
  for (const OwnerKey& key : *loaded) {
    if (!keys_.Find(key.owner)) (void)keys_.Add(key);
  }
  WipeKeys(*loaded);
  return {};
}

Status SealedRows::OpenDatabase() {
  const MutexLock lock(mutex_);
  KV_TRY(database_.Open(root_.id()));
  if (!options_.only_looks) {
    // Also in a file of an earlier version, which has no such table and needs no other one.
    KV_TRY(
        database_.Execute("CREATE TABLE IF NOT EXISTS erased (owner BLOB PRIMARY KEY NOT NULL)"));
    KV_TRY(Erasing([&]() KV_REQUIRES(mutex_) { return FinishErases(); }));
    KV_ASSIGN(const uint64_t most,
              database_.Number("SELECT coalesce(max(length(sealed)), 0) FROM sessions"));
    room_.NoteRow(most);
    KV_TRY(Erasing([&]() KV_REQUIRES(mutex_) { return database_.Scrub(); }));
    room_.KeepAgain();
  }
  room_.SetOpen();
  return {};
}

Result<OpenedFile> SealedRows::TakeRoom(uint64_t bytes, RowsRoom::For what) {
  return room_.Take(bytes, what, [&]() KV_REQUIRES(mutex_) { return database_.Scrub(); });
}

// Checks that folder and file are where they were: one that was moved away or removed must not take
// what a call makes durable.
Status SealedRows::CheckPlace() {
  const auto facts = storage_.FactsOf(root_.id(), std::string(kRowsName));
  if (facts && storage_.IsAt(root_.id(), options_.folder)) return {};
  return Fail(Code::kIoError, "{}/{} is gone", options_.folder, kRowsName);
}

Result<OwnerId> SealedRows::OwnerFor(const Digest& owner) {
  if (const auto known = keys_.Find(owner)) return *known;
  OwnerKey key{.owner = owner};
  if (!storage_.FillRandom(key.key) || !storage_.FillRandom(key.namespace_id)) {
    return Fail(Code::kIoError, "the system gives no random numbers");
  }
  const IoStatus written = WriteKeyFile(storage_, keys_folder_.id(), options_.secret, store_, key);
  std::optional<OwnerId> added;
  if (written) added = keys_.Add(key);
  WipeKeys({&key, 1});
  if (!written && IsFull(written.error())) return room_.NoRoomOnDevice();
  if (!written) {
    return FailErrno(written.error(), "cannot write a key in {}/{}", options_.folder,
                     kRowsKeysName);
  }
  if (!added) {
    return Fail(Code::kExhausted, "{} tenants have sessions on the disk, and no more may have some",
                OwnerKeys::kMaxOwners);
  }
  return *added;
}

Result<std::vector<RowFacts>> SealedRows::List() {
  const MutexLock lock(mutex_);
  std::vector<RowFacts> all;
  RowStatement rows(database_.handle(),
                    "SELECT id, owner, number, used, length(sealed) FROM sessions ORDER BY rowid");
  int step;
  while ((step = rows.Step()) == SQLITE_ROW) {
    RowFacts facts{.id = rows.Text(0),
                   .number = static_cast<uint64_t>(rows.Int(2)),
                   .used_s = rows.Int(3),
                   .bytes = static_cast<uint64_t>(rows.Int(4))};
    facts.bytes -= std::min<uint64_t>(facts.bytes, kRowSealBytes);
    if (const auto known = keys_.FindNamespace(RowOwnerFrom(rows.Blob(1)))) {
      facts.owner = keys_.owner_of(*known);
    }
    all.push_back(std::move(facts));
  }
  if (step != SQLITE_DONE) return database_.Failed("cannot be read");
  return all;
}

Status SealedRows::PutRow(OwnerId owner, std::string_view id, uint64_t number, int64_t used_s,
                          std::span<const std::byte> plain) {
  RecordSalt salt;
  if (!storage_.FillRandom(salt)) {
    return Fail(Code::kIoError, "the system gives no random numbers");
  }
  OwnerKey key = keys_.KeyOf(owner);
  const OwnerTag tag_of_owner = key.namespace_id;
  const auto made = SealRow(key, id, number, salt, plain);
  WipeKeys({&key, 1});
  if (!made) return Fail(Code::kUnavailable, "the system is out of memory; try again");
  const std::span<const std::byte> sealed = *made;
  if (number == 1) {
    RowStatement add(database_.handle(),
                     "INSERT INTO sessions(number, used, sealed, id, owner) VALUES(1,?,?,?,?) ON "
                     "CONFLICT(id) DO NOTHING");
    add.Bind(used_s).Bind(sealed).Bind(id).Bind(RowOwnerBytes(tag_of_owner));
    if (add.Step() != SQLITE_DONE) return database_.Failed("cannot be written");
    if (database_.num_changes() == 1) return {};
    return Fail(Code::kInvalidArgument, "there is a session {} already", id);
  }
  RowStatement put(database_.handle(),
                   "UPDATE sessions SET number=?, used=?, sealed=? WHERE id=? AND owner=? AND "
                   "number=?");
  put.Bind(static_cast<int64_t>(number)).Bind(used_s).Bind(sealed);
  put.Bind(id).Bind(RowOwnerBytes(tag_of_owner)).Bind(static_cast<int64_t>(number - 1));
  if (put.Step() != SQLITE_DONE) return database_.Failed("cannot be written");
  if (database_.num_changes() == 1) return {};
  return Fail(Code::kNotFound, "there is no session {}", id);
}

OwnerTag SealedRows::TagOf(OwnerId owner) const {
  OwnerKey key = keys_.KeyOf(owner);
  const OwnerTag tag = key.namespace_id;
  WipeKeys({&key, 1});
  return tag;
}

uint64_t SealedRows::BytesOfRow(std::string_view id) {
  RowStatement find(database_.handle(), "SELECT length(sealed) FROM sessions WHERE id=?");
  return find.Bind(id).Step() == SQLITE_ROW ? static_cast<uint64_t>(find.Int(0)) : 0;
}

// Checks that the owner may have a row of so many bytes instead of the old one. No share is kept
// for rows that no key unseals. O(log owners); O(rows) after rows were removed without their sizes.
Status SealedRows::CheckShare(const Digest& owner, uint64_t old_bytes, uint64_t new_bytes) {
  {
    const MutexLock lock(weights_mutex_);
    if (const auto weights = std::exchange(new_weights_, std::nullopt)) {
      shares_.SetWeights(*weights);
    }
  }
  if (!shares_.are_divided() || new_bytes <= old_bytes) return {};
  if (!shares_.is_known()) KV_TRY(ReadShares());
  if (shares_.Fits(owner, old_bytes, new_bytes)) return {};
  return Fail(Code::kExhausted,
              "your sessions take {} bytes of the disk, {} are kept for you, and this change does "
              "not fit beside what others have: delete sessions, or make them shorter",
              shares_.used_by(owner), shares_.kept_for(owner));
}

Status SealedRows::ReadShares() {
  shares_.Begin();
  RowStatement rows(database_.handle(), "SELECT owner, length(sealed) FROM sessions");
  int step;
  while ((step = rows.Step()) == SQLITE_ROW) {
    const auto known = keys_.FindNamespace(RowOwnerFrom(rows.Blob(0)));
    shares_.Add(known ? keys_.owner_of(*known) : Digest(), static_cast<uint64_t>(rows.Int(1)));
  }
  if (step == SQLITE_DONE) return {};
  shares_.Forget();
  return database_.Failed("cannot be read");
}

Status SealedRows::Put(const Digest& owner, std::string_view id, uint64_t number, int64_t used_s,
                       std::span<const std::byte> plain, Old old,
                       const std::function<bool()>& may) {
  const MutexLock lock(mutex_);
  KV_TRY(CheckPlace());
  if (may && !may()) return Fail(Code::kCancelled, "the session {} was erased meanwhile", id);
  const uint64_t old_bytes = BytesOfRow(id);
  const uint64_t new_bytes = plain.size() + kRowSealBytes;
  KV_TRY(CheckShare(owner, old_bytes, new_bytes));
  // The log has both, and the file has what is more than before, with the key's file.
  const uint64_t growth =
      RowsLogBytes(old_bytes + new_bytes) + std::max(new_bytes, old_bytes) - old_bytes;
  const RowsRoom::For what =
      old == Old::kScrubbed ? RowsRoom::For::kErasing : RowsRoom::For::kStoring;
  KV_ASSIGN(const OpenedFile room,
            TakeRoom(growth, new_bytes > old_bytes ? RowsRoom::For::kStoring : what));
  if (new_bytes > old_bytes) {  // what grows leaves the room to erase it
    room_.NoteRow(new_bytes);
    const uint64_t least = room_.Keep();
    room_.Need(growth + least);
    if (!room_.IsKept(least) && room_.IsDeviceFull()) return room_.NoRoomOnDevice();
    room_.Need(growth);
  }
  if (number > 1 && !keys_.Find(owner)) return Fail(Code::kNotFound, "there is no session {}", id);
  KV_ASSIGN(const OwnerId id_of_owner, OwnerFor(owner));
  const auto put = [&]() KV_REQUIRES(mutex_) {
    return PutRow(id_of_owner, id, number, used_s, plain);
  };
  if (old == Old::kStays) {
    KV_TRY(put());
    shares_.Change(owner, old_bytes, new_bytes);
    // The row is durable. What is left to do may fail without undoing that.
    (void)database_.KeepLogShort();
    return {};
  }
  Status done = Erasing(put);
  if (done) shares_.Change(owner, old_bytes, new_bytes);
  if (done) done = Erasing([&]() KV_REQUIRES(mutex_) { return database_.Scrub(); });
  room_.Keep();
  return done;
}

Result<std::vector<std::byte>> SealedRows::Get(const Digest& owner, std::string_view id) {
  const MutexLock lock(mutex_);
  RowStatement find(database_.handle(), "SELECT owner, number, sealed FROM sessions WHERE id=?");
  const int step = find.Bind(id).Step();
  if (step != SQLITE_ROW && step != SQLITE_DONE) {
    if ((sqlite3_errcode(database_.handle()) & 0xff) == SQLITE_CORRUPT) {
      return tl::unexpected(DamagedRow(id));
    }
    return database_.Failed("cannot be read");
  }
  const auto known = keys_.Find(owner);
  if (step == SQLITE_DONE || !known) return Fail(Code::kNotFound, "there is no session {}", id);
  OwnerKey key = keys_.KeyOf(*known);
  const bool is_owner = std::ranges::equal(find.Blob(0), RowOwnerBytes(key.namespace_id));
  auto plain = is_owner ? UnsealRow(key, id, static_cast<uint64_t>(find.Int(1)), find.Blob(2))
                        : std::nullopt;
  WipeKeys({&key, 1});
  if (!is_owner) return Fail(Code::kNotFound, "there is no session {}", id);
  if (!plain) return tl::unexpected(DamagedRow(id));
  return std::move(*plain);
}

Status SealedRows::Touch(std::string_view id, int64_t used_s) {
  const MutexLock lock(mutex_);
  KV_TRY(CheckPlace());
  KV_ASSIGN(const OpenedFile room, TakeRoom(kRowsSpareBytes, RowsRoom::For::kStoring));
  RowStatement touch(database_.handle(), "UPDATE sessions SET used=? WHERE id=?");
  if (touch.Bind(used_s).Bind(id).Step() != SQLITE_DONE)
    return database_.Failed("cannot be written");
  return {};
}

void SealedRows::SetWeights(const Shares::Weights& weights) {
  const MutexLock lock(weights_mutex_);
  new_weights_ = weights;
}

bool SealedRows::IsThere() {
  const MutexLock lock(mutex_);
  return CheckPlace().has_value();
}

uint64_t SealedRows::bytes() const {
  uint64_t sum = 0;
  for (const char* suffix : {"", "-wal"}) {
    const auto facts = storage_.FactsOf(root_.id(), std::string(kRowsName) + suffix);
    if (facts) sum += facts->bytes;
  }
  return sum;
}

void SealedRows::set_on_need(std::function<void(uint64_t bytes)> on_need) {
  const MutexLock lock(mutex_);
  room_.set_on_need(std::move(on_need));
}

}  // namespace kvasir
