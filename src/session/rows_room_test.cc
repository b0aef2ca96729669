#include "session/rows_room.h"

#include <gtest/gtest.h>

#include <fstream>

#include "session/rows_database.h"
#include "session/sealed_rows_for_test.h"
#include "tier/spare_file.h"
#include "tier/store_files.h"

namespace kvasir {
namespace {

// The device of the test: as much of it is free as the test says.
class SmallDevice : public RealStorage {
 public:
  std::optional<uint64_t> free_bytes;
  uint64_t num_pauses = 0;
  IoResult<SpaceFacts> Space(FileId folder) override {
    IoResult<SpaceFacts> space = RealStorage::Space(folder);
    if (space && free_bytes) space->free_bytes = *free_bytes;
    return space;
  }
  void Pause(uint64_t) override { ++num_pauses; }
};

class RowsRoomTest : public SealedRowsTest {
 protected:
  static constexpr uint64_t kMax = uint64_t{8} << 20;

  RowsRoomTest() {
    root_ = std::move(*OpenTierFolder(device_, rows_.folder));
    room_.Begin(root_.id());
    room_.set_on_need([this](uint64_t bytes) { needed_ = bytes; });
  }
  Result<OpenedFile> Take(uint64_t bytes, RowsRoom::For what) {
    return room_.Take(bytes, what, [this] {
      ++num_scrubs_;
      return Status();
    });
  }

  SmallDevice device_;
  OpenedFile root_;
  RowsRoom room_{rows_, device_, kMax};
  uint64_t needed_ = 0;
  int num_scrubs_ = 0;
};

TEST_F(RowsRoomTest, HoldsTheFoldersLockWhileTheRoomIsUsed) {
  {
    const auto room = Take(1000, RowsRoom::For::kStoring);
    ASSERT_TRUE(room) << room.error().message;
    EXPECT_EQ(LockTierFolder(device_, root_.id()).error(), EWOULDBLOCK);
  }
  EXPECT_TRUE(LockTierFolder(device_, root_.id()));
  EXPECT_GE(needed_, 1000u) << "the tier hears of it";
  EXPECT_EQ(num_scrubs_, 0);
}

TEST_F(RowsRoomTest, RefusesToStoreMoreThanRowsMayTake) {
  const auto refused = Take(kMax + 1, RowsRoom::For::kStoring);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kExhausted);
  EXPECT_EQ(num_scrubs_, 1) << "it first makes the file shorter";
  EXPECT_TRUE(Take(kMax + 1, RowsRoom::For::kErasing));
}

TEST_F(RowsRoomTest, WithoutATierBlocksGiveWay) {
  rows_.cap_bytes = uint64_t{1} << 20;
  std::ofstream(PathOf("blocks")) << std::string(rows_.cap_bytes, 'b');
  EXPECT_EQ(Take(1000, RowsRoom::For::kStoring).error().code, Code::kExhausted);
  EXPECT_EQ(device_.num_pauses, 59u) << "a tier could make room";
  rows_.blocks_give_way = true;
  EXPECT_TRUE(Take(1000, RowsRoom::For::kStoring));
  EXPECT_FALSE(Take(kMax + 1, RowsRoom::For::kStoring)) << "it is more than rows may take";
}

TEST_F(RowsRoomTest, WaitsForWhoHasTheFoldersLock) {
  const auto held = LockTierFolder(device_, root_.id());
  ASSERT_TRUE(held);
  const auto refused = Take(1, RowsRoom::For::kErasing);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kUnavailable);
  EXPECT_EQ(device_.num_pauses, 59u);
}

TEST_F(RowsRoomTest, AnEraseOnAFullDeviceGetsWhatWasKept) {
  room_.NoteRow(10'000);
  const uint64_t kept = room_.Keep();
  EXPECT_EQ(kept, RowsLogBytes(20'000));
  EXPECT_TRUE(room_.IsKept(kept));
  room_.Need(5000);
  EXPECT_FALSE(room_.GiveKept()) << "the device has room";
  device_.free_bytes = 4999;
  EXPECT_TRUE(room_.IsDeviceFull());
  EXPECT_TRUE(room_.GiveKept());
  EXPECT_TRUE(room_.has_given());
  EXPECT_EQ(SpareOf(device_, root_.id(), kRowsSpareName), 0u);
  EXPECT_FALSE(room_.GiveKept()) << "nothing is left to give";
  const Error full = room_.NoRoomOnDevice().value();
  EXPECT_EQ(full.code, Code::kExhausted) << "the file is not open yet";
  EXPECT_NE(full.message.find("4999"), std::string::npos) << full.message;
  room_.SetOpen();
  EXPECT_EQ(room_.NoRoomOnDevice().value().code, Code::kUnavailable);
}

TEST_F(RowsRoomTest, TheDatabaseSaysWhatItCouldNotDo) {
  RowsDatabase database(rows_, device_, room_);
  ASSERT_TRUE(database.Open(root_.id()));
  EXPECT_EQ(*database.Number("PRAGMA user_version"), 1u);
  ASSERT_TRUE(database.Execute("INSERT INTO sessions VALUES('a', x'00', 1, 2, x'0102')"));
  EXPECT_EQ(database.num_changes(), 1);
  const Status failed = database.Execute("INSERT INTO sessions VALUES('a', x'00', 1, 2, x'03')");
  ASSERT_FALSE(failed);
  EXPECT_NE(failed.error().message.find("sessions.db failed: "), std::string::npos)
      << failed.error().message;
  EXPECT_TRUE(database.Scrub());
  EXPECT_EQ(BytesOf(PathOf("sessions.db-wal")), "") << "the log is in the file";
}

TEST_F(RowsRoomTest, ADatabaseThatIsSetAsideIsBegunAnew) {
  RowsDatabase database(rows_, device_, room_);
  ASSERT_TRUE(database.Open(root_.id()));
  ASSERT_TRUE(database.Execute("INSERT INTO sessions VALUES('a', x'00', 1, 2, x'0102')"));
  ASSERT_TRUE(database.SetAside());
  EXPECT_EQ(database.handle(), nullptr);
  ASSERT_TRUE(database.Open(root_.id()));
  EXPECT_EQ(*database.Number("SELECT count(*) FROM sessions"), 0u);
}

}  // namespace
}  // namespace kvasir
