#include "session/sealed_rows.h"

#include <gtest/gtest.h>
#include <sqlite3.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>

#include "session/sealed_rows_for_test.h"
#include "tier/store_files.h"
#include "tier/unread_files.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;
using Old = SealedRows::Old;

TEST_F(SealedRowsTest, KeepsRowsForTheNextProcess) {
  {
    const auto rows = Open();
    ASSERT_TRUE(rows->Put(kMira, "sess_1", 1, 100, Bytes("hello"), Old::kStays));
    ASSERT_TRUE(rows->Put(kMira, "sess_2", 1, 100, Bytes(std::string(100'000, 'x')), Old::kStays));
    ASSERT_TRUE(rows->Put(kMira, "sess_1", 2, 200, Bytes("hello again"), Old::kScrubbed));
  }
  const auto rows = Open();
  EXPECT_EQ(TextOf(rows->Get(kMira, "sess_1")), "hello again");
  EXPECT_EQ(rows->Get(kMira, "sess_2")->size(), 100'000u);
  const auto list = rows->List();
  ASSERT_EQ(list->size(), 2u);
  EXPECT_EQ(list->at(0).id, "sess_1");
  EXPECT_EQ(list->at(0).owner, kMira);
  EXPECT_EQ(list->at(0).number, 2u);
  EXPECT_EQ(list->at(0).used_s, 200);
  EXPECT_EQ(list->at(0).bytes, 11u);
}

TEST_F(SealedRowsTest, ShowsARowToItsOwnerAlone) {
  const auto rows = Open();
  ASSERT_TRUE(rows->Put(kMira, "sess_1", 1, 100, Bytes("mine"), Old::kStays));
  ASSERT_TRUE(rows->Put(kOther, "sess_2", 1, 100, Bytes("yours"), Old::kStays));
  EXPECT_EQ(rows->Get(kOther, "sess_1").error().code, Code::kNotFound);
  ASSERT_TRUE(rows->Remove(kOther, "sess_1"));
  EXPECT_EQ(TextOf(rows->Get(kMira, "sess_1")), "mine");
}

TEST_F(SealedRowsTest, ReplacesOnlyTheRowOfTheNumberBefore) {
  const auto rows = Open();
  EXPECT_EQ(rows->Put(kMira, "sess_1", 2, 1, Bytes("b"), Old::kStays).error().code,
            Code::kNotFound);
  ASSERT_TRUE(rows->Put(kMira, "sess_1", 1, 1, Bytes("a"), Old::kStays));
  EXPECT_EQ(rows->Put(kMira, "sess_1", 1, 1, Bytes("b"), Old::kStays).error().code,
            Code::kInvalidArgument);
  EXPECT_EQ(rows->Put(kMira, "sess_1", 3, 1, Bytes("b"), Old::kStays).error().code,
            Code::kNotFound);
  ASSERT_TRUE(rows->RemoveOwner(kMira));  // and no copy of it brings it back
  EXPECT_EQ(rows->Put(kMira, "sess_1", 2, 1, Bytes("b"), Old::kStays).error().code,
            Code::kNotFound);
  EXPECT_EQ(rows->List()->size(), 0u);
}

TEST_F(SealedRowsTest, LeavesNoByteOfWhatWasRemoved) {
  const auto rows = Open();
  const std::string text(9000, 'q');
  ASSERT_TRUE(rows->Put(kMira, "sess_gone", 1, 100, Bytes(text), Old::kStays));
  EXPECT_NE(FolderBytes().find("sess_gone"), std::string::npos);  // an id is not a secret
  EXPECT_EQ(FolderBytes().find("qqqqqqqq"), std::string::npos);
  // The sealed bytes: what a row's page has of it.
  const std::string before = FolderBytes();
  ASSERT_TRUE(rows->Remove(kMira, "sess_gone"));
  EXPECT_EQ(FolderBytes().find("sess_gone"), std::string::npos);
  EXPECT_EQ(fs::file_size(PathOf("sessions.db-wal")), 0u);
  EXPECT_LT(FolderBytes().size(), before.size() - text.size());
}

TEST_F(SealedRowsTest, ErasesAnOwnerWithItsKey) {
  {
    const auto rows = Open();
    for (int i = 0; i < 20; ++i) {
      const std::string id = "sess_" + std::to_string(i);
      ASSERT_TRUE(rows->Put(i % 2 == 0 ? kMira : kOther, id, 1, 1, Bytes(id), Old::kStays));
    }
    EXPECT_EQ(std::distance(fs::directory_iterator(PathOf("keys")), {}), 2);
    ASSERT_TRUE(rows->RemoveOwner(kMira));
    EXPECT_EQ(std::distance(fs::directory_iterator(PathOf("keys")), {}), 1);
    EXPECT_EQ(rows->List()->size(), 10u);
  }
  const auto rows = Open();
  EXPECT_EQ(rows->List()->size(), 10u);
  EXPECT_EQ(TextOf(rows->Get(kOther, "sess_1")), "sess_1");
  EXPECT_EQ(rows->Get(kMira, "sess_2").error().code, Code::kNotFound);
}

TEST_F(SealedRowsTest, IsFullAtAnEighthOfTheCap) {
  rows_.cap_bytes = uint64_t{16} << 20;
  const auto rows = Open();
  const std::string text(100'000, 'x');
  Status put;
  int count = 0;
  for (; put && count < 100; ++count) {
    put = rows->Put(kMira, "sess_" + std::to_string(count), 1, 1, Bytes(text), Old::kStays);
    EXPECT_LE(rows->bytes(), rows->max_bytes());
  }
  ASSERT_FALSE(put);
  EXPECT_EQ(put.error().code, Code::kExhausted) << put.error().message;
  EXPECT_GE(count, 8);
  EXPECT_EQ(rows->List()->size(), static_cast<size_t>(count - 1));
  ASSERT_TRUE(rows->Remove(kMira, "sess_0"));  // a full file can be made smaller
  EXPECT_TRUE(rows->Put(kMira, "sess_new", 1, 1, Bytes(text), Old::kStays));
}

TEST_F(SealedRowsTest, ARefusalSaysNothingOfWhatOthersTake) {
  rows_.cap_bytes = uint64_t{16} << 20;
  std::set<std::string> said;
  for (const size_t others : {50'000, 400'000}) {
    fs::remove_all(rows_.folder);
    const auto rows = Open();
    const std::string theirs(others, 'x'), ours(2'000'000, 'y');
    ASSERT_TRUE(rows->Put(kOther, "sess_1", 1, 1, Bytes(theirs), Old::kStays));
    const Status put = rows->Put(kMira, "sess_2", 1, 1, Bytes(ours), Old::kStays);
    ASSERT_FALSE(put);
    EXPECT_EQ(put.error().code, Code::kExhausted);
    said.insert(put.error().message);
  }
  EXPECT_EQ(said.size(), 1u) << *said.begin() << "\n" << *said.rbegin();
}

TEST_F(SealedRowsTest, CountsWhatElseIsInTheFolder) {
  const auto rows = Open();
  std::ofstream(PathOf("seg-000000.kvs")) << "x";
  fs::resize_file(PathOf("seg-000000.kvs"), uint64_t{64} << 20);
  const Status put = rows->Put(kMira, "sess_1", 1, 1, Bytes("hello"), Old::kStays);
  ASSERT_FALSE(put);
  EXPECT_EQ(put.error().code, Code::kExhausted);
  EXPECT_EQ(rows->List()->size(), 0u);
}

TEST_F(SealedRowsTest, OneProcessHasTheFile) {
  const auto rows = Open();
  const Error error = OpenError();
  EXPECT_EQ(error.code, Code::kUnavailable);
  EXPECT_NE(error.message.find(std::to_string(getpid())), std::string::npos) << error.message;
}

TEST_F(SealedRowsTest, RefusesWhatIsNotItsDatabase) {
  Open();
  const auto set = [&](const char* sql) {
    sqlite3* database = nullptr;
    ASSERT_EQ(sqlite3_open(PathOf("sessions.db").c_str(), &database), SQLITE_OK);
    ASSERT_EQ(sqlite3_exec(database, sql, nullptr, nullptr, nullptr), SQLITE_OK);
    sqlite3_close(database);
  };
  set("PRAGMA user_version=2");
  EXPECT_EQ(OpenError().code, Code::kUnsupported);
  EXPECT_FALSE(fs::exists(PathOf("sessions.db.aside-1"))) << "a newer Kvasir opens it";
  set("PRAGMA user_version=1; PRAGMA application_id=5");
  EXPECT_TRUE(Open());
  EXPECT_TRUE(fs::is_regular_file(PathOf("sessions.db.aside-1")));
  std::ofstream(PathOf("sessions.db")) << std::string(5000, 'z');
  EXPECT_TRUE(Open());
  EXPECT_EQ(fs::file_size(PathOf("sessions.db.aside-2")), 5000u);
  fs::remove(PathOf("sessions.db"));
  fs::create_symlink("/dev/null", PathOf("sessions.db"));
  EXPECT_TRUE(Open());
  EXPECT_TRUE(fs::is_symlink(PathOf("sessions.db.aside-3")));
  fs::remove(PathOf("sessions.db"));
  fs::create_directory(PathOf("sessions.db"));
  EXPECT_TRUE(Open());
  EXPECT_TRUE(fs::is_directory(PathOf("sessions.db.aside-4")));
}

TEST_F(SealedRowsTest, SaysThatItsFolderIsGone) {
  const auto rows = Open();
  fs::rename(rows_.folder, rows_.folder + "-moved");
  const Status put = rows->Put(kMira, "sess_1", 1, 1, Bytes("hello"), Old::kStays);
  ASSERT_FALSE(put);
  EXPECT_EQ(put.error().code, Code::kIoError);
}

TEST_F(SealedRowsTest, KeepsWhatAnotherSecretMadeUntilItIsRemovedByName) {
  {
    const auto rows = Open();
    ASSERT_TRUE(rows->Put(kMira, "sess_1", 1, 100, Bytes("mine"), Old::kStays));
    ASSERT_TRUE(rows->Put(kOther, "sess_2", 1, 100, Bytes("yours"), Old::kStays));
  }
  const Secret secret = rows_.secret;
  rows_.secret[0] ^= 1;
  {
    const auto rows = Open();
    ASSERT_TRUE(rows->Put(kMira, "sess_3", 1, 200, Bytes("new"), Old::kStays));
    const auto list = rows->List();
    ASSERT_EQ(list->size(), 3u);
    EXPECT_EQ(list->at(0).owner, Digest{});
    EXPECT_EQ(rows->RemoveUnused(150)->size(), 0u);  // old, but whose?
    EXPECT_EQ(rows->Get(kMira, "sess_1").error().code, Code::kNotFound);
    ASSERT_TRUE(rows->RemoveOwner(kMira));
    EXPECT_EQ(rows->List()->size(), 2u);
  }
  rows_.secret = secret;
  {
    const auto rows = Open();
    EXPECT_EQ(TextOf(rows->Get(kMira, "sess_1")), "mine");
    EXPECT_EQ(TextOf(rows->Get(kOther, "sess_2")), "yours");
  }
  rows_.secret[0] ^= 1;
  const auto rows = Open();
  ASSERT_TRUE(rows->Put(kMira, "sess_4", 1, 200, Bytes("stays"), Old::kStays));
  EXPECT_EQ(rows->RemoveUnreadable().value_or(0), 2u);
  EXPECT_EQ(TextOf(rows->Get(kMira, "sess_4")), "stays");
  EXPECT_EQ(rows->List()->size(), 1u);
  EXPECT_EQ(std::distance(fs::directory_iterator(PathOf("keys")), {}), 1);
}

// Half of a key file, one of a newer version, a folder: a new key does not take its place, and an
// erase of the owner takes it along.
TEST_F(SealedRowsTest, SetsAKeyAsideThatCannotBeUnsealed) {
  for (const int kind : {0, 1, 2}) {
    fs::remove_all(rows_.folder);
    {
      const auto rows = Open();
      ASSERT_TRUE(rows->Put(kMira, "sess_1", 1, 1, Bytes("mine"), Old::kStays));
    }
    const fs::path key = fs::directory_iterator(PathOf("keys"))->path();
    std::ifstream file(key, std::ios::binary);
    const std::string whole(std::istreambuf_iterator<char>(file), {});
    file.close();
    fs::copy_file(key, PathOf("kept"));
    std::string changed = whole.substr(0, whole.size() / 2);
    if (kind == 1) {
      changed = whole;
      changed[8] = 2;
    }
    fs::remove(key);
    if (kind == 2) fs::create_directory(key);
    if (kind != 2) std::ofstream(key, std::ios::binary) << changed;
    {
      const auto rows = Open();
      ASSERT_TRUE(rows);
      ASSERT_TRUE(rows->Put(kMira, "sess_2", 1, 1, Bytes("new"), Old::kStays));
      EXPECT_EQ(rows->List()->size(), 2u);
    }
    const fs::path aside = key.string() + ".aside-1";
    ASSERT_TRUE(fs::exists(aside));
    if (kind != 2) {
      std::ifstream kept(aside, std::ios::binary);
      EXPECT_EQ(std::string(std::istreambuf_iterator<char>(kept), {}), changed);
    }
    fs::copy_file(key, PathOf("second"));
    {
      const auto rows = Open();
      EXPECT_EQ(TextOf(rows->Get(kMira, "sess_2")), "new");
      ASSERT_TRUE(rows->RemoveOwner(kMira));
      EXPECT_EQ(fs::exists(key), false);
      EXPECT_EQ(fs::exists(aside), kind == 2);
    }
    // The key that comes back opens the old row: nothing else had touched it.
    fs::copy_file(PathOf("kept"), key);
    EXPECT_EQ(TextOf(Open()->Get(kMira, "sess_1")), "mine");
  }
}

// Rows are kept in a new file, and an erase of their owner covers those that were set aside.
TEST_F(SealedRowsTest, SetsHalfAFileAsideAsItIs) {
  {
    const auto rows = Open();
    ASSERT_TRUE(rows->Put(kMira, "sess_1", 1, 1, Bytes(std::string(50'000, 'x')), Old::kStays));
    ASSERT_TRUE(rows->Put(kOther, "sess_2", 1, 1, Bytes("yours"), Old::kStays));
  }
  const std::string whole = BytesOf(PathOf("sessions.db"));
  fs::resize_file(PathOf("sessions.db"), whole.size() / 2);
  (void)CheckRows(rows_, storage_);
  EXPECT_FALSE(fs::exists(PathOf("sessions.db.aside-1"))) << "who only looks moves nothing";
  {
    const auto rows = Open();
    EXPECT_EQ(BytesOf(PathOf("sessions.db.aside-1")), whole.substr(0, whole.size() / 2));
    EXPECT_EQ(rows->Get(kMira, "sess_1").error().code, Code::kNotFound);
    ASSERT_TRUE(rows->Put(kMira, "sess_3", 1, 1, Bytes("new"), Old::kStays));
    EXPECT_EQ(TextOf(rows->Get(kMira, "sess_3")), "new");
    ASSERT_TRUE(rows->RemoveOwner(kMira));
  }
  // Once the file is mended, the rows of owners who did not erase theirs are found.
  std::ofstream(PathOf("sessions.db"), std::ios::binary) << whole;
  const auto rows = Open();
  EXPECT_EQ(TextOf(rows->Get(kOther, "sess_2")), "yours");
  EXPECT_FALSE(rows->Get(kMira, "sess_1"));
}

// Its rows may open once it is mended, so only who removes sessions by name removes it.
TEST_F(SealedRowsTest, RemovesByNameWhatWasSetAside) {
  {
    const auto rows = Open();
    ASSERT_TRUE(rows->Put(kMira, "sess_1", 1, 1, Bytes(std::string(50'000, 'x')), Old::kStays));
  }
  fs::resize_file(PathOf("sessions.db"), 20'000);
  const auto rows = Open();
  ASSERT_TRUE(rows->Put(kMira, "sess_2", 1, 1, Bytes("stays"), Old::kStays));
  ASSERT_TRUE(fs::exists(PathOf("sessions.db.aside-1")));
  const auto root = Own(storage_, storage_.OpenRoot(rows_.folder));
  const auto unread = ListUnread(storage_, root->id(), rows_.secret);
  ASSERT_TRUE(unread);
  EXPECT_EQ(unread->names, std::vector<std::string>());
  EXPECT_EQ(rows->RemoveUnreadable().value_or(9), 0u);
  EXPECT_FALSE(fs::exists(PathOf("sessions.db.aside-1")));
  EXPECT_EQ(TextOf(rows->Get(kMira, "sess_2")), "stays");
}

// A log that a crash left, and a file of an earlier version, which has one table less.
TEST_F(SealedRowsTest, WhoOnlyLooksChangesNothing) {
  const fs::path crashed = parent_ / "crashed";
  {
    const auto rows = Open();
    ASSERT_TRUE(rows->Put(kMira, "sess_1", 1, 1, Bytes("mine"), Old::kStays));
    fs::copy(rows_.folder, crashed, fs::copy_options::recursive);
    ASSERT_GT(fs::file_size(crashed / "sessions.db-wal"), 0u);
  }
  sqlite3* database = nullptr;
  ASSERT_EQ(sqlite3_open(PathOf("sessions.db").c_str(), &database), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(database, "DROP TABLE erased", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(database);
  for (const fs::path& folder : {fs::path(rows_.folder), crashed}) {
    rows_.folder = folder;
    const auto bytes = [&] {
      return BytesOf(PathOf("sessions.db")) + "|" + BytesOf(PathOf("sessions.db-wal"));
    };
    const std::string before = bytes();
    const auto check = CheckRows(rows_, storage_);
    ASSERT_TRUE(check && *check);
    EXPECT_EQ((*check)->rows, 1u);
    EXPECT_TRUE(bytes() == before) << folder;
    EXPECT_EQ(TextOf(Open()->Get(kMira, "sess_1")), "mine");
  }
}

// Each byte of the file is flipped: rows are as they were written, or they do not open.
TEST_F(SealedRowsTest, NeverShowsFlippedBytes) {
  const std::map<std::string, std::string> texts = {
      {"sess_a", std::string(30, 'a')}, {"sess_b", std::string(5000, 'b')}, {"sess_c", "c"}};
  {
    const auto rows = Open();
    for (const auto& [id, text] : texts) {
      ASSERT_TRUE(rows->Put(kMira, id, 1, 1, Bytes(text), Old::kStays));
    }
  }
  const std::string path = PathOf("sessions.db");
  std::ifstream file(path, std::ios::binary);
  const std::string whole(std::istreambuf_iterator<char>(file), {});
  int damaged = 0, lost = 0;
  for (size_t at = 0; at < whole.size(); at += 7) {
    std::string flipped = whole;
    flipped[at] = static_cast<char>(flipped[at] ^ 0x10);
    std::ofstream(path, std::ios::binary | std::ios::trunc) << flipped;
    const auto opened = SealedRows::Open(rows_, storage_);
    if (!opened) {
      ++lost;
      continue;
    }
    for (const auto& [id, text] : texts) {
      const auto got = (*opened)->Get(kMira, id);
      damaged += got ? 0 : 1;
      if (got) {
        EXPECT_EQ(TextOf(got), text) << at;
      }
    }
  }
  EXPECT_GT(damaged, static_cast<int>(whole.size() / 7 / 8));
  EXPECT_LT(lost, static_cast<int>(whole.size() / 7 / 4));
}

TEST_F(SealedRowsTest, CheckNamesDamagedRows) {
  EXPECT_FALSE(CheckRows(rows_, storage_).value_or(RowsCheck()));
  {
    const auto rows = Open();
    ASSERT_TRUE(rows->Put(kMira, "sess_whole", 1, 1, Bytes("whole"), Old::kStays));
    ASSERT_TRUE(rows->Put(kMira, "sess_bad", 1, 1, Bytes("bad"), Old::kStays));
    const auto check = CheckRows(rows_, storage_);
    ASSERT_TRUE(check && *check);
    EXPECT_TRUE((*check)->skipped);
  }
  sqlite3* database = nullptr;
  ASSERT_EQ(sqlite3_open(PathOf("sessions.db").c_str(), &database), SQLITE_OK);
  // A row of one number cannot be unsealed under another one: an older row cannot come back so.
  ASSERT_EQ(sqlite3_exec(database, "UPDATE sessions SET number=2 WHERE id='sess_bad'", nullptr,
                         nullptr, nullptr),
            SQLITE_OK);
  sqlite3_close(database);
  const auto check = CheckRows(rows_, storage_);
  ASSERT_TRUE(check && *check);
  EXPECT_EQ((*check)->rows, 1u);
  ASSERT_EQ((*check)->damaged.size(), 1u);
  EXPECT_NE((*check)->damaged[0].find("sess_bad"), std::string::npos);
}

}  // namespace
}  // namespace kvasir
