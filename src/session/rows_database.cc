#include "session/rows_database.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>

#include "base/result.h"
#include "base/system_error.h"
#include "tier/set_aside.h"
#include "tier/store_files.h"

namespace kvasir {
namespace {

constexpr int kApplicationId = 0x4B56534E, kRowsVersion = 1;
constexpr uint64_t kLogBytes = uint64_t{1} << 20;  // a longer log moves into the file
constexpr int kVacuums = 16;  // of a scrub, each of as many pages as kRowsSpareBytes has room for
constexpr uint64_t kVacuumPages = 32;

// Tells whether the file may not grow by what is being written. SQLite's error is the same where
// the device refuses a write.
bool IsAtItsLimit(sqlite3* database, const RowsRoom& room) {
  const auto number = [&](const char* sql) {
    RowStatement statement(database, sql);
    return statement.Step() == SQLITE_ROW ? statement.Int(0) : 0;
  };
  const int64_t left = number("PRAGMA max_page_count") - number("PRAGMA page_count") +
                       number("PRAGMA freelist_count");
  return left * static_cast<int64_t>(kRowsPage) < static_cast<int64_t>(room.needed_bytes());
}

}  // namespace

RowsDatabase::~RowsDatabase() { sqlite3_close(database_); }

Status RowsDatabase::Open(FileId root) {
  root_ = root;
  bool is_new = false;
  KV_TRY(OpenFile(root, &is_new));
  KV_TRY(SetUp(is_new));
  uint64_t num_tables = 0, version = 0;
  KV_TRY(CheckFormat(&num_tables, &version));
  KV_TRY(Execute("PRAGMA journal_mode=WAL"));
  // Half of the room is for the log: each transaction fits there.
  KV_TRY(
      Execute(fmt::format("PRAGMA max_page_count={}", room_.max_bytes() / 2 / kRowsPage).c_str()));
  if (num_tables == 0 || version < kRowsVersion) KV_TRY(MakeTables());
  return {};
}

// Opens the file. `is_new`: it was missing, or empty.
Status RowsDatabase::OpenFile(FileId root, bool* is_new) {
  const std::string path = options_.folder + "/" + std::string(kRowsName);
  const IoResult<FileFacts> before = storage_.FactsOf(root, std::string(kRowsName));
  if (before && before->kind != FileFacts::Kind::kFile) {
    return Fail(Code::kCorruption, "{} is not a file", path);
  }
  if (before && !before->is_private) {
    return Fail(Code::kPermissionDenied, "{} is not a file that is ours alone", path);
  }
  *is_new = !before || before->bytes == 0;
  if (!*is_new) KV_TRY(CheckWhole(before->bytes));
  if (*is_new) {  // 0600, which SQLite's other files take over
    auto made =
        Own(storage_, storage_.OpenFile(root, std::string(kRowsName), OpenMode::kWriteOrNew));
    if (!made) return FailErrno(made.error(), "cannot make {}", path);
  }
  constexpr int kFlags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
  if (sqlite3_open_v2(path.c_str(), &database_, kFlags, options_.vfs) != SQLITE_OK) {
    return Failed("cannot open");
  }
  return {};
}

// Refuses a file that was cut, and leaves it as it is: SQLite would write to what is left of it.
// While there is a log, pages may be in it alone.
Status RowsDatabase::CheckWhole(uint64_t bytes) {
  const auto log = storage_.FactsOf(root_, std::string(kRowsName) + "-wal");
  if (log && log->bytes > 0) return {};
  constexpr size_t kHead = 32, kPagesAt = 28;  // of SQLite's format, big endian
  std::array<std::byte, kHead> head{};
  const auto file =
      Own(storage_, storage_.OpenFile(root_, std::string(kRowsName), OpenMode::kRead));
  if (file && bytes >= kHead) (void)ReadAll(storage_, file->id(), head, 0);
  constexpr std::string_view kMagic = "SQLite format 3";
  if (std::memcmp(head.data(), kMagic.data(), kMagic.size()) != 0) return {};  // SQLite says so
  uint64_t pages = 0;
  for (size_t i = kPagesAt; i < kHead; ++i) pages = pages << 8 | static_cast<uint64_t>(head[i]);
  if (bytes >= kRowsPage && bytes >= pages * kRowsPage) return {};
  return Fail(Code::kCorruption,
              "{}/{} has {} bytes, and what it was has more; move it away to begin a new one",
              options_.folder, kRowsName, bytes);
}

// Sets what holds for this connection, and for a new file.
Status RowsDatabase::SetUp(bool is_new) {
  sqlite3_extended_result_codes(database_, 1);
  const auto log = storage_.FactsOf(root_, std::string(kRowsName) + "-wal");
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

// Refuses what is not ours, or of a newer version.
Status RowsDatabase::CheckFormat(uint64_t* num_tables, uint64_t* version) {
  const std::string path = options_.folder + "/" + std::string(kRowsName);
  KV_ASSIGN(const uint64_t application, Number("PRAGMA application_id"));
  KV_ASSIGN(*version, Number("PRAGMA user_version"));
  KV_ASSIGN(*num_tables, Number("SELECT count(*) FROM sqlite_schema"));
  if (*num_tables > 0 && application != kApplicationId) {
    return Fail(Code::kCorruption, "{} is another program's database; move it away", path);
  }
  if (*version > kRowsVersion) {
    return Fail(Code::kUnsupported,
                "{} has version {}, of a newer Kvasir; this one writes version {}", path, *version,
                kRowsVersion);
  }
  if (sqlite3_db_readonly(database_, "main") != 0) {
    return Fail(Code::kPermissionDenied, "{} cannot be written to", path);
  }
  return {};
}

Status RowsDatabase::MakeTables() {
  KV_TRY(Execute(
      fmt::format("BEGIN IMMEDIATE;"
                  "CREATE TABLE IF NOT EXISTS sessions (id TEXT PRIMARY KEY NOT NULL, owner BLOB "
                  "NOT NULL, number INTEGER NOT NULL, used INTEGER NOT NULL, sealed BLOB NOT "
                  "NULL);"
                  "PRAGMA application_id={};PRAGMA user_version={};COMMIT",
                  kApplicationId, kRowsVersion)
          .c_str()));
  if (const IoStatus synced = storage_.SyncFolder(root_); !synced) {
    return FailErrno(synced.error(), "cannot sync {}", options_.folder);
  }
  return {};
}

Status RowsDatabase::SetAside() {
  sqlite3_close(database_);
  database_ = nullptr;
  for (const char* suffix : {"", "-wal", "-journal"}) {
    const std::string name = std::string(kRowsName) + suffix;
    if (!storage_.FactsOf(root_, name)) continue;
    if (const auto aside = kvasir::SetAside(storage_, root_, name); !aside) {
      return FailErrno(aside.error(), "cannot set {}/{} aside", options_.folder, name);
    }
  }
  return {};
}

Status RowsDatabase::Execute(const char* sql) {
  if (sqlite3_exec(database_, sql, nullptr, nullptr, nullptr) == SQLITE_OK) return {};
  auto failed = Failed("failed");
  if (sqlite3_get_autocommit(database_) == 0) {
    sqlite3_exec(database_, "ROLLBACK", nullptr, nullptr, nullptr);
  }
  return failed;
}

Result<uint64_t> RowsDatabase::Number(const char* sql) {
  RowStatement statement(database_, sql);
  if (statement.Step() != SQLITE_ROW) return Failed("cannot be read");
  return static_cast<uint64_t>(statement.Int(0));
}

tl::unexpected<Error> RowsDatabase::Failed(std::string_view what) const {
  const int code = sqlite3_errcode(database_) & 0xff;
  const bool may_lack_room = code == SQLITE_FULL || code == SQLITE_IOERR || code == SQLITE_CANTOPEN;
  const bool is_refused = code == SQLITE_FULL && !IsAtItsLimit(database_, room_);
  if (is_refused || (may_lack_room && room_.IsDeviceFull())) return room_.NoRoomOnDevice();
  const std::string text =
      fmt::format("{}/{} {}: {}", options_.folder, kRowsName, what, sqlite3_errmsg(database_));
  switch (code) {
    case SQLITE_FULL:
      return tl::unexpected(NoRoomInRows(room_.max_bytes()));
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

Status RowsDatabase::Scrub() {
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

Status RowsDatabase::KeepLogShort() {
  const auto log = storage_.FactsOf(root_, std::string(kRowsName) + "-wal");
  return log && log->bytes > (room_.has_given() ? 0 : kLogBytes) ? Scrub() : Status{};
}

}  // namespace kvasir
