// SealedRows where the process ends in a call, or the device fails.
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/wait.h>
#include <unistd.h>

#include <climits>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "session/sealed_rows_for_test.h"
#include "tier/spare_file.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;
using Old = SealedRows::Old;

// --- a process that ends inside any call of the file system

// SQLite's files, where the process ends inside call number `left` that changes something.
struct DyingFile {
  sqlite3_file base;
  sqlite3_file* real;
};
int calls_left = 0;
std::function<int()> fails_write;  // SQLite's code for the next write; empty: it is made

void Count(const std::function<void()>& half) {
  if (--calls_left > 0) return;
  half();
  _exit(0);
}
sqlite3_file* Real(sqlite3_file* file) { return reinterpret_cast<DyingFile*>(file)->real; }

const sqlite3_io_methods kDying = {
    .iVersion = 1,
    .xClose = [](sqlite3_file* file) { return Real(file)->pMethods->xClose(Real(file)); },
    .xRead =
        [](sqlite3_file* file, void* to, int bytes, sqlite3_int64 at) {
          return Real(file)->pMethods->xRead(Real(file), to, bytes, at);
        },
    .xWrite =
        [](sqlite3_file* file, const void* from, int bytes, sqlite3_int64 at) {
          const int failed = fails_write ? fails_write() : SQLITE_OK;
          if (failed != SQLITE_OK) return failed;
          const auto write = [&](int some) {
            return Real(file)->pMethods->xWrite(Real(file), from, some, at);
          };
          Count([&] { write(bytes / 2); });
          return write(bytes);
        },
    .xTruncate =
        [](sqlite3_file* file, sqlite3_int64 bytes) {
          Count([] {});
          return Real(file)->pMethods->xTruncate(Real(file), bytes);
        },
    .xSync =
        [](sqlite3_file* file, int flags) {
          Count([] {});
          return Real(file)->pMethods->xSync(Real(file), flags);
        },
    .xFileSize =
        [](sqlite3_file* file, sqlite3_int64* bytes) {
          return Real(file)->pMethods->xFileSize(Real(file), bytes);
        },
    .xLock = [](sqlite3_file* file,
                int kind) { return Real(file)->pMethods->xLock(Real(file), kind); },
    .xUnlock = [](sqlite3_file* file,
                  int kind) { return Real(file)->pMethods->xUnlock(Real(file), kind); },
    .xCheckReservedLock =
        [](sqlite3_file* file, int* is) {
          return Real(file)->pMethods->xCheckReservedLock(Real(file), is);
        },
    .xFileControl =
        [](sqlite3_file* file, int what, void* of) {
          return Real(file)->pMethods->xFileControl(Real(file), what, of);
        },
    .xSectorSize = [](sqlite3_file* file) { return Real(file)->pMethods->xSectorSize(Real(file)); },
    .xDeviceCharacteristics =
        [](sqlite3_file* file) { return Real(file)->pMethods->xDeviceCharacteristics(Real(file)); },
};

void RegisterDyingFiles() {
  static sqlite3_vfs dying;
  if (dying.zName != nullptr) return;
  sqlite3_vfs* real = sqlite3_vfs_find(nullptr);
  dying = *real;
  dying.zName = "dying";
  dying.pNext = nullptr;
  dying.szOsFile = static_cast<int>(sizeof(DyingFile)) + real->szOsFile;
  dying.xOpen = [](sqlite3_vfs*, const char* name, sqlite3_file* file, int flags, int* out) {
    auto* mine = reinterpret_cast<DyingFile*>(file);
    mine->real = reinterpret_cast<sqlite3_file*>(mine + 1);
    sqlite3_vfs* below = sqlite3_vfs_find("unix");
    const int opened = below->xOpen(below, name, mine->real, flags, out);
    file->pMethods = opened == SQLITE_OK ? &kDying : nullptr;
    return opened;
  };
  sqlite3_vfs_register(&dying, 0);
}

// Does what a process does, and tells of each call that returned. Never returns.
[[noreturn]] void Change(const SealedRowsOptions& options, int calls, int out) {
  RegisterDyingFiles();
  RealStorage storage;
  SealedRowsOptions dying = options;
  dying.vfs = "dying";
  calls_left = calls;
  const auto opened = SealedRows::Open(dying, storage);
  if (!opened) _exit(2);
  SealedRows& rows = **opened;
  char done = 0;
  const auto tell = [&](const Status& status) {
    if (!status) _exit(3);
    ++done;
    if (write(out, &done, 1) != 1) _exit(4);
  };
  tell(rows.Put(kMira, "sess_1", 2, 1, Bytes(std::string(20'000, '2')), Old::kStays));
  tell(rows.Put(kMira, "sess_2", 1, 1, Bytes("new"), Old::kStays));
  tell(rows.Put(kMira, "sess_1", 3, 1, Bytes("short"), Old::kScrubbed));
  tell(rows.Remove(kMira, "sess_2"));
  tell(rows.RemoveOwner(kOther));
  _exit(1);
}

TEST_F(SealedRowsTest, ACallHasHappenedOrNotWhereverTheProcessEnds) {
  // What the rows are after so many calls: of Mira, and of the other one.
  const std::vector<std::map<std::string, std::string>> states = {
      {{"sess_1", "one"}, {"sess_3", "other"}},
      {{"sess_1", std::string(20'000, '2')}, {"sess_3", "other"}},
      {{"sess_1", std::string(20'000, '2')}, {"sess_2", "new"}, {"sess_3", "other"}},
      {{"sess_1", "short"}, {"sess_2", "new"}, {"sess_3", "other"}},
      {{"sess_1", "short"}, {"sess_3", "other"}},
      {{"sess_1", "short"}}};
  bool ends = false;
  int calls = 1;
  for (; !ends && calls < 2000; ++calls) {
    fs::remove_all(rows_.folder);
    {
      const auto rows = Open();
      ASSERT_TRUE(rows->Put(kMira, "sess_1", 1, 1, Bytes("one"), Old::kStays));
      ASSERT_TRUE(rows->Put(kOther, "sess_3", 1, 1, Bytes("other"), Old::kStays));
    }
    int pipes[2];
    ASSERT_EQ(pipe(pipes), 0);
    const pid_t child = fork();
    if (child == 0) Change(rows_, calls, pipes[1]);
    close(pipes[1]);
    char told = 0;
    while (read(pipes[0], &told, 1) == 1) {
    }
    close(pipes[0]);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) <= 1) << calls << " " << status;
    ends = WEXITSTATUS(status) == 1;
    const auto rows = Open();
    ASSERT_TRUE(rows);
    std::map<std::string, std::string> found;
    const auto list = rows->List();
    for (const RowFacts& facts : *list) {
      found[facts.id] = TextOf(rows->Get(facts.owner, facts.id));
    }
    const auto is = [&](size_t state) { return state < states.size() && found == states[state]; };
    ASSERT_TRUE(is(static_cast<size_t>(told)) || is(static_cast<size_t>(told) + 1))
        << "call " << calls << ", told of " << int{told};
  }
  EXPECT_TRUE(ends);
  EXPECT_GT(calls, 30);
}

// --- writes that fail

class SealedRowsFaults : public SealedRowsTest {
 protected:
  SealedRowsFaults() {
    RegisterDyingFiles();
    rows_.vfs = "dying";
    calls_left = INT_MAX;
  }
  ~SealedRowsFaults() override {
    fails_write = nullptr;
    calls_left = 0;
  }
};

// Every third write of the first try in turn: its key may be gone, and its rows not.
TEST_F(SealedRowsFaults, AnEraseThatFailedIsDoneByTheNextTry) {
  int failed = 0;
  bool ends = false;
  for (int fails_at = 1; !ends; fails_at += 3) {
    fs::remove_all(rows_.folder);
    const auto rows = Open();
    for (const char* id : {"sess_gone_1", "sess_gone_2"}) {
      ASSERT_TRUE(rows->Put(kMira, id, 1, 1, Bytes(std::string(5000, 'x')), Old::kStays));
    }
    ASSERT_TRUE(rows->Put(kOther, "sess_stays", 1, 1, Bytes("yours"), Old::kStays));
    int writes = 0;
    fails_write = [&] { return ++writes == fails_at ? SQLITE_IOERR_WRITE : SQLITE_OK; };
    const Status first = rows->RemoveOwner(kMira);
    fails_write = nullptr;
    ends = first.has_value();
    if (!ends) {
      ++failed;
      const Status second = rows->RemoveOwner(kMira);
      ASSERT_TRUE(second) << second.error().message;
    }
    ASSERT_EQ(rows->List()->size(), 1u) << fails_at;
    ASSERT_EQ(FolderBytes().find("sess_gone"), std::string::npos) << fails_at;
    EXPECT_EQ(TextOf(rows->Get(kOther, "sess_stays")), "yours");
  }
  EXPECT_GT(failed, 5);
}

// A device without a place for one more file: the system says that bytes are free.
TEST_F(SealedRowsFaults, ADeviceThatRefusesAWriteIsNoFullFile) {
  const auto rows = Open();
  ASSERT_TRUE(rows->Put(kMira, "sess_1", 1, 1, Bytes("one"), Old::kStays));
  fails_write = [] { return SQLITE_FULL; };
  const Status put = rows->Put(kMira, "sess_2", 1, 1, Bytes("two"), Old::kStays);
  const Status removed = rows->Remove(kMira, "sess_1");
  fails_write = nullptr;
  for (const Status& one : {put, removed}) {
    ASSERT_FALSE(one);
    EXPECT_EQ(one.error().code, Code::kUnavailable);
    EXPECT_NE(one.error().message.find("it refused a write"), std::string::npos)
        << one.error().message;
  }
  EXPECT_EQ(rows->List()->size(), 1u);
  EXPECT_TRUE(rows->Remove(kMira, "sess_1"));
}

// What was kept for erases is the only room of the device.
TEST_F(SealedRowsFaults, RoomForTheNextEraseIsKeptAgain) {
  class FullDevice : public RealStorage {
   public:
    bool is_full = false;
    IoResult<SpaceFacts> Space(FileId folder) override {
      IoResult<SpaceFacts> space = RealStorage::Space(folder);
      const bool is_kept = SpareOf(*this, folder, kRowsSpareName) > 0;
      if (space && is_full) space->free_bytes = is_kept ? 0 : uint64_t{4} << 20;
      return space;
    }
  };
  FullDevice device;
  const std::string text(30'000, 'x');
  const auto put = [&](const Secret& secret) {
    SealedRowsOptions options = rows_;
    options.secret = secret;
    const auto rows = SealedRows::Open(options, device);
    ASSERT_TRUE(rows) << rows.error().message;
    for (const char* id : {"_1", "_2"}) {
      const std::string name = "sess" + std::to_string(secret[0]) + id;
      ASSERT_TRUE((*rows)->Put(kMira, name, 1, 100, Bytes(text), Old::kStays));
    }
  };
  put(Secret{77});
  put(rows_.secret);
  const auto opened = SealedRows::Open(rows_, device);
  ASSERT_TRUE(opened) << opened.error().message;
  SealedRows& rows = **opened;
  ASSERT_TRUE(fs::exists(PathOf(kRowsSpareName)));
  device.is_full = true;
  fails_write = [&] { return fs::exists(PathOf(kRowsSpareName)) ? SQLITE_FULL : SQLITE_OK; };
  const auto old = rows.RemoveUnused(150);
  ASSERT_TRUE(old) << old.error().message;
  EXPECT_EQ(old->size(), 2u);
  EXPECT_TRUE(fs::exists(PathOf(kRowsSpareName)));
  const auto unreadable = rows.RemoveUnreadable();
  ASSERT_TRUE(unreadable) << unreadable.error().message;
  EXPECT_EQ(*unreadable, 2u);
  EXPECT_TRUE(fs::exists(PathOf(kRowsSpareName)));
  EXPECT_TRUE(rows.RemoveOwner(kMira));
  EXPECT_TRUE(fs::exists(PathOf(kRowsSpareName)));
}

}  // namespace
}  // namespace kvasir
