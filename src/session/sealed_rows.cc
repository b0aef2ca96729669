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
#include "tier/disk_tier.h"
#include "tier/erase_files.h"
#include "tier/key_files.h"
#include "tier/set_aside.h"
#include "tier/spare_file.h"
#include "tier/store_files.h"
#include "tier/unread_files.h"

namespace kvasir {
namespace {

constexpr std::string_view kRowsPurpose = "kvasir sessions";
constexpr int kApplicationId = 0x4B56534E, kRowsVersion = 1;
constexpr uint64_t kPage = 4096, kFrame = kPage + 24;
constexpr uint64_t kSpare = 64 * kPage;  // pages of the tree, of free lists and of the log's head
constexpr uint64_t kLogBytes = uint64_t{1} << 20;  // a longer log moves into the file
// The tier gives room back within a second after it hears of the need.
constexpr int kRoomTries = 60;
constexpr uint64_t kRoomPauseMs = 50;
constexpr int kVacuums = 16;  // of a scrub, each of as many pages as kSpare has room for
constexpr uint64_t kVacuumPages = 32;
constexpr uint64_t kNeedStep = uint64_t{1} << 20;

StoreId RowsStoreOf(const Secret& secret) {
  const Digest digest = HmacKey(secret).Of(std::as_bytes(std::span(kRowsPurpose)));
  StoreId id;
  std::memcpy(id.data(), digest.data(), id.size());
  return id;
}

// What a transaction adds to the log that writes or zeros so many bytes of rows.
constexpr uint64_t LogBytesOf(uint64_t row_bytes) {
  return row_bytes / (kPage - 4) * kFrame + kSpare;
}

Error DamagedRow(std::string_view id) {
  return {Code::kCorruption,
          fmt::format("the session {} is damaged in sessions.db, and cannot be opened", id)};
}

// Without a figure of what is taken: several tenants share the file.
Error NoRoomInFile(uint64_t max_bytes) {
  return {Code::kExhausted,
          fmt::format("sessions may take {} bytes of the disk, an eighth of --disk-cap, and there "
                      "is no room for this change: delete sessions, or make them shorter",
                      max_bytes)};
}

std::span<const std::byte> BytesOf(const OwnerTag& tag) { return std::as_bytes(std::span(tag)); }

}  // namespace

SealedRows::SealedRows(const SealedRowsOptions& options, Storage& storage, OwnerKeys keys)
    : options_(options),
      storage_(storage),
      store_(RowsStoreOf(options.secret)),
      max_bytes_(options.cap_bytes / 8 / kPage * kPage),
      keys_(std::move(keys)) {}

SealedRows::~SealedRows() {
  if (database_ != nullptr && !options_.only_looks) (void)Scrub();
  sqlite3_close(database_);
}

Result<std::unique_ptr<SealedRows>> SealedRows::Open(const SealedRowsOptions& options,
                                                     Storage& storage) {
  KV_ASSIGN(OwnerKeys keys, OwnerKeys::Create(OwnerKeys::kMaxOwners));
  std::unique_ptr<SealedRows> rows(new SealedRows(options, storage, std::move(keys)));
  KV_TRY(rows->OpenFiles());
  Status opened = rows->OpenDatabase();
  if (!opened && opened.error().code == Code::kCorruption && !options.only_looks) {
    KV_TRY(rows->SetDatabaseAside());
    opened = rows->OpenDatabase();
  }
  if (!opened) return tl::unexpected(opened.error());
  return rows;
}

// An erase of an owner covers what is set aside: its key, which opens the rows there, goes.
Status SealedRows::SetDatabaseAside() {
  const MutexLock lock(mutex_);
  sqlite3_close(database_);
  database_ = nullptr;
  for (const char* suffix : {"", "-wal", "-journal"}) {
    const std::string name = std::string(kRowsName) + suffix;
    if (!storage_.FactsOf(root_.id(), name)) continue;
    if (const auto aside = SetAside(storage_, root_.id(), name); !aside) {
      return FailErrno(aside.error(), "cannot set {}/{} aside", options_.folder, name);
    }
  }
  return {};
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

// A file that was cut is left as it is: SQLite would write to what is left of it. While there is a
// log, pages may be in it alone.
Status SealedRows::CheckWhole(uint64_t bytes) {
  const auto log = storage_.FactsOf(root_.id(), std::string(kRowsName) + "-wal");
  if (log && log->bytes > 0) return {};
  constexpr size_t kHead = 32, kPagesAt = 28;  // of SQLite's format, big endian
  std::array<std::byte, kHead> head{};
  const auto file =
      Own(storage_, storage_.OpenFile(root_.id(), std::string(kRowsName), OpenMode::kRead));
  if (file && bytes >= kHead) (void)ReadAll(storage_, file->id(), head, 0);
  constexpr std::string_view kMagic = "SQLite format 3";
  if (std::memcmp(head.data(), kMagic.data(), kMagic.size()) != 0) return {};  // SQLite says so
  uint64_t pages = 0;
  for (size_t i = kPagesAt; i < kHead; ++i) pages = pages << 8 | static_cast<uint64_t>(head[i]);
  if (bytes >= kPage && bytes >= pages * kPage) return {};
  return Fail(Code::kCorruption,
              "{}/{} has {} bytes, and what it was has more; move it away to begin a new one",
              options_.folder, kRowsName, bytes);
}

// What holds for this connection, and for a new file.
Status SealedRows::SetUpDatabase(bool is_new) {
  sqlite3_extended_result_codes(database_, 1);
  const auto log = storage_.FactsOf(root_.id(), std::string(kRowsName) + "-wal");
  if (options_.only_looks && log && log->bytes > 0) {  // also the log stays as it is
    sqlite3_db_config(database_, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, nullptr);
  }
  // One process has the file, so its log needs no shared memory beside it.
  KV_TRY(Execute("PRAGMA locking_mode=EXCLUSIVE"));
  KV_TRY(Execute("PRAGMA temp_store=MEMORY"));
  KV_TRY(Execute("PRAGMA secure_delete=ON"));
  KV_TRY(Execute("PRAGMA synchronous=FULL"));
  KV_TRY(Execute("PRAGMA wal_autocheckpoint=0"));
  KV_TRY(Execute("PRAGMA trusted_schema=OFF"));
  KV_TRY(Execute("PRAGMA cell_size_check=ON"));
  if (is_new) {
    KV_TRY(Execute("PRAGMA page_size=4096"));
    KV_TRY(Execute("PRAGMA auto_vacuum=INCREMENTAL"));
  }
  return {};
}

Status SealedRows::OpenDatabase() {
  const MutexLock lock(mutex_);
  const std::string path = options_.folder + "/" + std::string(kRowsName);
  const IoResult<FileFacts> before = storage_.FactsOf(root_.id(), std::string(kRowsName));
  if (before && before->kind != FileFacts::Kind::kFile) {
    return Fail(Code::kCorruption, "{} is not a file", path);
  }
  if (before && !before->is_private) {
    return Fail(Code::kPermissionDenied, "{} is not a file that is ours alone", path);
  }
  const bool is_new = !before || before->bytes == 0;
  if (!is_new) KV_TRY(CheckWhole(before->bytes));
  if (is_new) {  // 0600, which SQLite's other files take over
    auto made =
        Own(storage_, storage_.OpenFile(root_.id(), std::string(kRowsName), OpenMode::kWriteOrNew));
    if (!made) return FailErrno(made.error(), "cannot make {}", path);
  }
  constexpr int kFlags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
  if (sqlite3_open_v2(path.c_str(), &database_, kFlags, options_.vfs) != SQLITE_OK) {
    return Failed("cannot open");
  }
  KV_TRY(SetUpDatabase(is_new));
  KV_ASSIGN(const uint64_t application, Number("PRAGMA application_id"));
  KV_ASSIGN(const uint64_t version, Number("PRAGMA user_version"));
  KV_ASSIGN(const uint64_t tables, Number("SELECT count(*) FROM sqlite_schema"));
  if (tables > 0 && application != kApplicationId) {
    return Fail(Code::kCorruption, "{} is another program's database; move it away", path);
  }
  if (version > kRowsVersion) {
    return Fail(Code::kUnsupported,
                "{} has version {}, of a newer Kvasir; this one writes version {}", path, version,
                kRowsVersion);
  }
  if (sqlite3_db_readonly(database_, "main") != 0) {
    return Fail(Code::kPermissionDenied, "{} cannot be written to", path);
  }
  KV_TRY(Execute("PRAGMA journal_mode=WAL"));
  // Half of the room is for the log: each transaction fits there.
  KV_TRY(Execute(fmt::format("PRAGMA max_page_count={}", max_bytes_ / 2 / kPage).c_str()));
  if (tables == 0 || version < kRowsVersion) {
    KV_TRY(Execute(
        fmt::format("BEGIN IMMEDIATE;"
                    "CREATE TABLE IF NOT EXISTS sessions (id TEXT PRIMARY KEY NOT NULL, owner BLOB "
                    "NOT NULL, number INTEGER NOT NULL, used INTEGER NOT NULL, sealed BLOB NOT "
                    "NULL);"
                    "PRAGMA application_id={};PRAGMA user_version={};COMMIT",
                    kApplicationId, kRowsVersion)
            .c_str()));
    if (const IoStatus synced = storage_.SyncFolder(root_.id()); !synced) {
      return FailErrno(synced.error(), "cannot sync {}", options_.folder);
    }
  }
  if (!options_.only_looks) {
    // Also in a file of an earlier version, which has no such table and needs no other one.
    KV_TRY(Execute("CREATE TABLE IF NOT EXISTS erased (owner BLOB PRIMARY KEY NOT NULL)"));
    KV_TRY(Erasing([&]() KV_REQUIRES(mutex_) { return FinishErases(); }));
    KV_ASSIGN(most_row_bytes_, Number("SELECT coalesce(max(length(sealed)), 0) FROM sessions"));
    KV_TRY(Erasing([&]() KV_REQUIRES(mutex_) { return Scrub(); }));
    KeepRoomAgain();
  }
  is_open_ = true;
  return {};
}

namespace {

OwnerTag TagFrom(std::span<const std::byte> bytes) {
  OwnerTag tag{};
  if (bytes.size() == tag.size()) std::memcpy(tag.data(), bytes.data(), tag.size());
  return tag;
}

}  // namespace

// What RemoveOwner began: only its note tells the rows of an erased owner from those of another
// secret.
Status SealedRows::FinishErases() {
  KV_TRY(Execute("DELETE FROM erased WHERE length(owner)<>16"));
  for (;;) {
    OwnerTag tag;
    {
      RowStatement next(database_, "SELECT owner FROM erased LIMIT 1");
      const int step = next.Step();
      if (step == SQLITE_DONE) return {};
      if (step != SQLITE_ROW) return Failed("cannot be read");
      tag = TagFrom(next.Blob(0));
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

// Row by row: the log of one transaction may have no room for all. Then the note of the erase.
Status SealedRows::RemoveRowsOf(const OwnerTag& tag) {
  for (;;) {
    RowStatement remove(database_,
                        "DELETE FROM sessions WHERE rowid=(SELECT rowid FROM sessions WHERE "
                        "owner=? LIMIT 1)");
    if (remove.Bind(BytesOf(tag)).Step() != SQLITE_DONE) return Failed("cannot be written");
    if (sqlite3_changes(database_) == 0) break;
    KV_TRY(KeepLogShort());
  }
  RowStatement remove(database_, "DELETE FROM erased WHERE owner=?");
  if (remove.Bind(BytesOf(tag)).Step() != SQLITE_DONE) return Failed("cannot be written");
  return {};
}

Status SealedRows::RemoveRow(std::string_view id) {
  RowStatement remove(database_, "DELETE FROM sessions WHERE id=?");
  if (remove.Bind(id).Step() != SQLITE_DONE) return Failed("cannot be written");
  return KeepLogShort();
}

Status SealedRows::KeepLogShort() {
  const auto log = storage_.FactsOf(root_.id(), std::string(kRowsName) + "-wal");
  return log && log->bytes > (has_given_room_ ? 0 : kLogBytes) ? Scrub() : Status{};
}

Status SealedRows::Execute(const char* sql) {
  if (sqlite3_exec(database_, sql, nullptr, nullptr, nullptr) == SQLITE_OK) return {};
  auto failed = Failed("failed");
  if (sqlite3_get_autocommit(database_) == 0) {
    sqlite3_exec(database_, "ROLLBACK", nullptr, nullptr, nullptr);
  }
  return failed;
}

Result<uint64_t> SealedRows::Number(const char* sql) {
  RowStatement statement(database_, sql);
  if (statement.Step() != SQLITE_ROW) return Failed("cannot be read");
  return static_cast<uint64_t>(statement.Int(0));
}

// While the file is being opened, kUnavailable says that another process has it.
tl::unexpected<Error> SealedRows::NoRoomOnDevice() {
  const IoResult<SpaceFacts> space = storage_.Space(root_.id());
  return Fail(
      is_open_ ? Code::kUnavailable : Code::kExhausted,
      "no room on the device that keeps sessions: this needs up to {} bytes, and {} are free",
      needed_bytes_, space ? space->free_bytes : 0);
}

bool SealedRows::IsDeviceFull() {
  const IoResult<SpaceFacts> space = storage_.Space(root_.id());
  return space && space->free_bytes < needed_bytes_;
}

tl::unexpected<Error> SealedRows::Failed(std::string_view what) {
  const int code = sqlite3_errcode(database_) & 0xff;
  const bool may_lack_room = code == SQLITE_FULL || code == SQLITE_IOERR || code == SQLITE_CANTOPEN;
  if (may_lack_room && IsDeviceFull()) return NoRoomOnDevice();
  const std::string text =
      fmt::format("{}/{} {}: {}", options_.folder, kRowsName, what, sqlite3_errmsg(database_));
  switch (code) {
    case SQLITE_FULL:
      return tl::unexpected(NoRoomInFile(max_bytes_));
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return Fail(Code::kCorruption, "{}; move it away to begin a new one", text);
    case SQLITE_PERM:
    case SQLITE_READONLY:
      return Fail(Code::kPermissionDenied, "{}", text);
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return Fail(Code::kUnavailable, "{}", text);
    default:
      return Fail(Code::kIoError, "{}", text);
  }
}

// The next erase finds this much room on a full device, and the two logs of an edit fit there.
uint64_t SealedRows::KeepRoom() {
  const uint64_t bytes = LogBytesOf(2 * most_row_bytes_);
  has_given_room_ = false;
  // Some more, so that an edit that is a little longer leaves enough.
  KeepSpare(storage_, root_.id(), kRowsSpareName, RoundUp(bytes + kSpare / 4, kPage),
            options_.cap_bytes);
  return bytes;
}

// Behind erases that do not hold the folder's lock.
void SealedRows::KeepRoomAgain() {
  if (const IoResult<OpenedFile> lock = LockTierFolder(storage_, root_.id()); lock) KeepRoom();
}

// Runs a step that may be run again: on a full device with the room that was kept.
template <typename Step>
Status SealedRows::Erasing(Step step) {
  Status done = step();
  if (done || !IsDeviceFull() || !GiveSpare(storage_, root_.id(), kRowsSpareName)) return done;
  has_given_room_ = true;
  return step();
}

// Moves the log into the file and empties it, and gives pages back that nothing needs.
Status SealedRows::Scrub() {
  for (int i = 0; i < kVacuums; ++i) {
    RowStatement checkpoint(database_, "PRAGMA wal_checkpoint(TRUNCATE)");
    if (checkpoint.Step() != SQLITE_ROW) return Failed("cannot be written");
    if (checkpoint.Int(0) != 0) return Fail(Code::kUnavailable, "the log of sessions.db is in use");
    KV_ASSIGN(const uint64_t unused, Number("PRAGMA freelist_count"));
    if (unused == 0) return {};
    KV_TRY(Execute(fmt::format("PRAGMA incremental_vacuum({})", kVacuumPages).c_str()));
  }
  return Execute("PRAGMA wal_checkpoint(TRUNCATE)");
}

// A folder that was moved away or removed must not take what a call makes durable.
Status SealedRows::CheckPlace() {
  const auto facts = storage_.FactsOf(root_.id(), std::string(kRowsName));
  if (facts && storage_.IsAt(root_.id(), options_.folder)) return {};
  return Fail(Code::kIoError, "{}/{} is gone", options_.folder, kRowsName);
}

// Room for `bytes` more in file and log, as long as the result lives: it is the folder's lock.
// An erase is not held up by what sessions may have, and has what was kept for it.
Result<OpenedFile> SealedRows::TakeRoom(uint64_t bytes, For what) {
  needed_bytes_ = bytes;
  const auto taken = [&]() KV_REQUIRES(mutex_) {
    uint64_t sum = 0;
    for (const char* suffix : {"", "-wal", "-journal"}) {
      const auto facts = storage_.FactsOf(root_.id(), std::string(kRowsName) + suffix);
      if (facts) sum += std::max(facts->bytes, facts->blocks_bytes);
    }
    return sum;
  };
  if (taken() + bytes > max_bytes_) KV_TRY(Scrub());
  const uint64_t now = taken();
  const uint64_t spare = LogBytesOf(2 * most_row_bytes_);
  if (on_need_) on_need_(std::min(max_bytes_, RoundUp(now + bytes + spare, kNeedStep)));
  if (what == For::kStoring && now + bytes > max_bytes_) {
    return tl::unexpected(NoRoomInFile(max_bytes_));
  }
  for (int tries = 1;; ++tries) {
    IoResult<OpenedFile> lock = LockTierFolder(storage_, root_.id());
    if (!lock && lock.error() != EWOULDBLOCK) {
      return FailErrno(lock.error(), "cannot lock {}", options_.folder);
    }
    uint64_t used = 0;
    if (lock) {
      const auto tree = storage_.TreeBytes(root_.id(), kSegmentPrefix);
      if (!tree) return FailErrno(tree.error(), "cannot count what {} takes", options_.folder);
      used = tree->whole_bytes + tree->other_bytes;
      if (used + bytes + kTierDraftBytes <= options_.cap_bytes) {
        return std::move(*lock);
      }
      // A full folder: the room that was kept, which the cap counts too.
      if (what == For::kErasing && (tries == kRoomTries || used >= options_.cap_bytes)) {
        (void)GiveSpare(storage_, root_.id(), kRowsSpareName);
        return std::move(*lock);
      }
    }
    if (tries == kRoomTries) {
      return Fail(what == For::kErasing ? Code::kUnavailable : Code::kExhausted,
                  "the disk folder may have {} bytes (--disk-cap), and this change needs up to {} "
                  "more than it has left; try again soon",
                  options_.cap_bytes, bytes);
    }
    lock = IoFailed(EWOULDBLOCK);  // others may give room back
    storage_.Pause(kRoomPauseMs);
  }
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
  if (!written && IsFull(written.error())) return NoRoomOnDevice();
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
  RowStatement rows(database_,
                    "SELECT id, owner, number, used, length(sealed) FROM sessions ORDER BY rowid");
  int step;
  while ((step = rows.Step()) == SQLITE_ROW) {
    RowFacts facts{.id = rows.Text(0),
                   .number = static_cast<uint64_t>(rows.Int(2)),
                   .used_s = rows.Int(3),
                   .bytes = static_cast<uint64_t>(rows.Int(4))};
    facts.bytes -= std::min<uint64_t>(facts.bytes, kRowSealBytes);
    if (const auto known = keys_.FindNamespace(TagFrom(rows.Blob(1)))) {
      facts.owner = keys_.owner_of(*known);
    }
    all.push_back(std::move(facts));
  }
  if (step != SQLITE_DONE) return Failed("cannot be read");
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
    RowStatement add(database_,
                     "INSERT INTO sessions(number, used, sealed, id, owner) VALUES(1,?,?,?,?) ON "
                     "CONFLICT(id) DO NOTHING");
    add.Bind(used_s).Bind(sealed).Bind(id).Bind(BytesOf(tag_of_owner));
    if (add.Step() != SQLITE_DONE) return Failed("cannot be written");
    if (sqlite3_changes(database_) == 1) return {};
    return Fail(Code::kInvalidArgument, "there is a session {} already", id);
  }
  RowStatement put(database_,
                   "UPDATE sessions SET number=?, used=?, sealed=? WHERE id=? AND owner=? AND "
                   "number=?");
  put.Bind(static_cast<int64_t>(number)).Bind(used_s).Bind(sealed);
  put.Bind(id).Bind(BytesOf(tag_of_owner)).Bind(static_cast<int64_t>(number - 1));
  if (put.Step() != SQLITE_DONE) return Failed("cannot be written");
  if (sqlite3_changes(database_) == 1) return {};
  return Fail(Code::kNotFound, "there is no session {}", id);
}

uint64_t SealedRows::BytesOfRow(std::string_view id) {
  RowStatement find(database_, "SELECT length(sealed) FROM sessions WHERE id=?");
  return find.Bind(id).Step() == SQLITE_ROW ? static_cast<uint64_t>(find.Int(0)) : 0;
}

// What a row takes of the file at most: whole pages, and its part of others.
constexpr uint64_t FileBytesOf(uint64_t row_bytes) {
  return row_bytes == 0 ? 0 : (row_bytes / (kPage - 4) + 2) * kPage;
}

// Whether the owner may have a row of so many bytes instead of the old one. Rows that no key opens
// are of nobody whose share is kept.
Status SealedRows::CheckShare(const Digest& owner, uint64_t old_bytes, uint64_t new_bytes) {
  // Without pages that are of no row: PRAGMA max_page_count has all.
  const uint64_t pages = max_bytes_ / 2 / kPage;
  const uint64_t others = pages / 512 + 8;
  Shares shares((pages - std::min(pages, others)) * kPage);
  {
    const MutexLock lock(weights_mutex_);
    shares.SetWeights(weights_);
  }
  if (!shares.are_divided() || new_bytes <= old_bytes) return {};
  RowStatement rows(database_, "SELECT owner, length(sealed) FROM sessions");
  int step;
  while ((step = rows.Step()) == SQLITE_ROW) {
    const auto known = keys_.FindNamespace(TagFrom(rows.Blob(0)));
    shares.Add(known ? keys_.owner_of(*known) : Digest(),
               FileBytesOf(static_cast<uint64_t>(rows.Int(1))));
  }
  if (step != SQLITE_DONE) return Failed("cannot be read");
  const uint64_t used = shares.used_by(owner);
  if (shares.Take(owner, FileBytesOf(new_bytes) - FileBytesOf(old_bytes))) return {};
  return Fail(Code::kExhausted,
              "your sessions take {} bytes of the disk, {} are kept for you, and this change does "
              "not fit beside what others have: delete sessions, or make them shorter",
              used, shares.kept_for(owner));
}

Status SealedRows::Put(const Digest& owner, std::string_view id, uint64_t number, int64_t used_s,
                       std::span<const std::byte> plain, Old old) {
  const MutexLock lock(mutex_);
  KV_TRY(CheckPlace());
  const uint64_t old_bytes = BytesOfRow(id);
  const uint64_t new_bytes = plain.size() + kRowSealBytes;
  KV_TRY(CheckShare(owner, old_bytes, new_bytes));
  // The log has both, and the file has what is more than before, with the key's file.
  const uint64_t growth =
      LogBytesOf(old_bytes + new_bytes) + std::max(new_bytes, old_bytes) - old_bytes;
  const For what = old == Old::kScrubbed ? For::kErasing : For::kStoring;
  KV_ASSIGN(const OpenedFile room, TakeRoom(growth, new_bytes > old_bytes ? For::kStoring : what));
  if (new_bytes > old_bytes) {  // what grows leaves the room to erase it
    most_row_bytes_ = std::max(most_row_bytes_, new_bytes);
    const uint64_t least = KeepRoom();
    needed_bytes_ += least;
    const bool is_kept = SpareOf(storage_, root_.id(), kRowsSpareName) >= least;
    if (!is_kept && IsDeviceFull()) return NoRoomOnDevice();
    needed_bytes_ = growth;
  }
  if (number > 1 && !keys_.Find(owner)) return Fail(Code::kNotFound, "there is no session {}", id);
  KV_ASSIGN(const OwnerId id_of_owner, OwnerFor(owner));
  const auto put = [&]() KV_REQUIRES(mutex_) {
    return PutRow(id_of_owner, id, number, used_s, plain);
  };
  if (old == Old::kStays) {
    KV_TRY(put());
    // The row is durable. What is left to do may fail without undoing that.
    (void)KeepLogShort();
    return {};
  }
  Status done = Erasing(put);
  if (done) done = Erasing([&]() KV_REQUIRES(mutex_) { return Scrub(); });
  KeepRoom();
  return done;
}

Result<std::vector<std::byte>> SealedRows::Get(const Digest& owner, std::string_view id) {
  const MutexLock lock(mutex_);
  RowStatement find(database_, "SELECT owner, number, sealed FROM sessions WHERE id=?");
  const int step = find.Bind(id).Step();
  if (step != SQLITE_ROW && step != SQLITE_DONE) {
    if ((sqlite3_errcode(database_) & 0xff) == SQLITE_CORRUPT) {
      return tl::unexpected(DamagedRow(id));
    }
    return Failed("cannot be read");
  }
  const auto known = keys_.Find(owner);
  if (step == SQLITE_DONE || !known) return Fail(Code::kNotFound, "there is no session {}", id);
  OwnerKey key = keys_.KeyOf(*known);
  const bool is_owner = std::ranges::equal(find.Blob(0), BytesOf(key.namespace_id));
  auto plain =
      is_owner ? OpenRow(key, id, static_cast<uint64_t>(find.Int(1)), find.Blob(2)) : std::nullopt;
  WipeKeys({&key, 1});
  if (!is_owner) return Fail(Code::kNotFound, "there is no session {}", id);
  if (!plain) return tl::unexpected(DamagedRow(id));
  return std::move(*plain);
}

Status SealedRows::Touch(std::string_view id, int64_t used_s) {
  const MutexLock lock(mutex_);
  KV_TRY(CheckPlace());
  KV_ASSIGN(const OpenedFile room, TakeRoom(kSpare, For::kStoring));
  RowStatement touch(database_, "UPDATE sessions SET used=? WHERE id=?");
  if (touch.Bind(used_s).Bind(id).Step() != SQLITE_DONE) return Failed("cannot be written");
  return {};
}

Status SealedRows::Remove(const Digest& owner, std::string_view id) {
  const MutexLock lock(mutex_);
  const auto known = keys_.Find(owner);
  if (!known) return {};
  KV_TRY(CheckPlace());
  OwnerKey key = keys_.KeyOf(*known);
  const OwnerTag tag = key.namespace_id;
  WipeKeys({&key, 1});
  KV_ASSIGN(const OpenedFile room, TakeRoom(LogBytesOf(BytesOfRow(id)), For::kErasing));
  Status done = Erasing([&]() KV_REQUIRES(mutex_) -> Status {
    RowStatement remove(database_, "DELETE FROM sessions WHERE id=? AND owner=?");
    if (remove.Bind(id).Bind(BytesOf(tag)).Step() == SQLITE_DONE) return {};
    return Failed("cannot be written");
  });
  if (done) done = Erasing([&]() KV_REQUIRES(mutex_) { return Scrub(); });
  KeepRoom();
  return done;
}

Result<std::vector<std::string>> SealedRows::RemoveUnused(int64_t least_used_s) {
  const MutexLock lock(mutex_);
  KV_TRY(CheckPlace());
  needed_bytes_ = LogBytesOf(2 * most_row_bytes_);
  std::vector<std::string> removed;
  {
    RowStatement rows(database_, "SELECT id, owner FROM sessions WHERE used<?");
    rows.Bind(least_used_s);
    int step;
    while ((step = rows.Step()) == SQLITE_ROW) {
      if (keys_.FindNamespace(TagFrom(rows.Blob(1)))) removed.push_back(rows.Text(0));
    }
    if (step != SQLITE_DONE) return Failed("cannot be read");
  }
  if (!removed.empty()) KV_TRY(RemoveRows(removed));
  return removed;
}

Status SealedRows::RemoveRows(std::span<const std::string> ids) {
  Status done;
  for (const std::string& id : ids) {
    if (done) done = Erasing([&]() KV_REQUIRES(mutex_) { return RemoveRow(id); });
  }
  if (done) done = Erasing([&]() KV_REQUIRES(mutex_) { return Scrub(); });
  KeepRoomAgain();
  return done;
}

// Note, key, rows: with the note the next start goes on with it.
Status SealedRows::RemoveOwner(const Digest& owner) {
  const MutexLock lock(mutex_);
  KV_TRY(CheckPlace());
  needed_bytes_ = LogBytesOf(2 * most_row_bytes_);
  const auto known = keys_.Find(owner);
  OwnerTag tag{};
  Status done;
  if (known) {
    OwnerKey key = keys_.KeyOf(*known);
    tag = key.namespace_id;
    WipeKeys({&key, 1});
    done = Erasing([&]() KV_REQUIRES(mutex_) -> Status {
      RowStatement note(database_, "INSERT OR IGNORE INTO erased(owner) VALUES(?)");
      if (note.Bind(BytesOf(tag)).Step() == SQLITE_DONE) return {};
      return Failed("cannot be written");
    });
  }
  if (done) done = RemoveKeyAndRows(owner, known, tag);
  KeepRoomAgain();
  return done;
}

// With the rows of owners whose key went before, and who ask again.
Status SealedRows::RemoveKeyAndRows(const Digest& owner, std::optional<OwnerId> known,
                                    const OwnerTag& tag) {
  // Also where it does not open: the rows that it is of are to be erased too.
  const auto removed =
      RemoveKeyFile(storage_, keys_folder_.id(), KeyFileName(options_.secret, owner));
  if (!removed) {
    RowStatement undo(database_, "DELETE FROM erased WHERE owner=?");
    if (known) (void)undo.Bind(BytesOf(tag)).Step();
    return FailErrno(removed.error(), "cannot remove a key in {}/{}", options_.folder,
                     kRowsKeysName);
  }
  if (known) keys_.Release(*known);
  KV_TRY(Erasing([&]() KV_REQUIRES(mutex_) { return FinishErases(); }));
  return Erasing([&]() KV_REQUIRES(mutex_) { return Scrub(); });
}

Result<uint64_t> SealedRows::RemoveUnreadable() {
  const MutexLock lock(mutex_);
  KV_TRY(CheckPlace());
  needed_bytes_ = LogBytesOf(2 * most_row_bytes_);
  std::vector<std::string> ids;
  {
    RowStatement rows(database_, "SELECT id, owner FROM sessions");
    int step;
    while ((step = rows.Step()) == SQLITE_ROW) {
      if (!keys_.FindNamespace(TagFrom(rows.Blob(1)))) ids.push_back(rows.Text(0));
    }
    if (step != SQLITE_DONE) return Failed("cannot be read");
  }
  KV_TRY(RemoveRows(ids));
  const auto keys = RemoveUnreadKeys(storage_, keys_folder_.id(), options_.secret, store_);
  if (!keys) {
    return FailErrno(keys.error(), "cannot remove a key in {}/{}", options_.folder, kRowsKeysName);
  }
  const IoStatus asides = RemoveAsidesOfRows(storage_, root_.id());
  if (!asides) return FailErrno(asides.error(), "cannot remove a file in {}", options_.folder);
  return ids.size();
}

void SealedRows::SetWeights(const Shares::Weights& weights) {
  const MutexLock lock(weights_mutex_);
  weights_ = weights;
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
  on_need_ = std::move(on_need);
}

}  // namespace kvasir
