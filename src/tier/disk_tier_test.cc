#include "tier/disk_tier.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/fault.h"
#include "base/hex.h"
#include "base/rounds_for_test.h"
#include "tier/blocking_storage_for_test.h"
#include "tier/erase_files.h"
#include "tier/tier_driver_for_test.h"
#include "tier/tier_folder_for_test.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;
using Read = TierDriver::Read;

class DiskTierTest : public TierFolderTest {
 protected:
  ~DiskTierTest() override { InjectFault(Fault::kNone); }

  std::unique_ptr<DiskTier> OpenTier() {
    auto tier = DiskTier::Open(options_, storage_);
    EXPECT_TRUE(tier) << tier.error().message;
    return tier ? std::move(*tier) : nullptr;
  }
  Error OpenError() {
    auto tier = DiskTier::Open(options_, storage_);
    return tier ? Error{Code::kNotFound, "it opened"} : tier.error();
  }
  fs::path StoreFolder() const {
    return fs::path(options_.folder) / ToHex(StoreIdOf(options_.secret, options_.identity));
  }
  static std::string BytesOf(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  std::string AllBytes() const {
    std::string all;
    for (const auto& entry : fs::recursive_directory_iterator(options_.folder)) {
      if (entry.is_regular_file()) all += BytesOf(entry.path());
    }
    return all;
  }

  RealStorage storage_;
};

TEST_F(DiskTierTest, FindsAfterACloseWhatItStoredBefore) {
  for (int round = 0; round < 2; ++round) {
    const auto tier = OpenTier();
    ASSERT_NE(tier, nullptr);
    TierDriver driver(*tier);
    for (uint32_t i = 0; i < 20; ++i) {
      if (round == 0) {
        ASSERT_TRUE(driver.Write(Record(0, i)));
      }
    }
    const auto flushed = driver.Flush();
    ASSERT_TRUE(flushed) << flushed.error().message;
    EXPECT_LE(flushed->blocks, round == 0 ? 20u : 0u);
    for (uint32_t i = 0; i < 20; ++i) {
      EXPECT_TRUE(tier->Has(Record(0, i).facts.name)) << i;
      EXPECT_EQ(driver.ReadBack(Record(0, i)), Read::kRight) << i;
    }
    EXPECT_TRUE(tier->CheckInvariants());
    const TierStats stats = tier->Stats();
    EXPECT_EQ(stats.blocks, 20u);
    EXPECT_GE(stats.read_seconds.count(), 1u);
    EXPECT_EQ(stats.write_seconds.count() > 0, round == 0);
  }
}

TEST_F(DiskTierTest, FindsAfterAnExitRightAfterFlushWhatWasFlushed) {
  const pid_t child = fork();
  if (child == 0) {
    const auto tier = OpenTier();
    TierDriver driver(*tier);
    for (uint32_t i = 0; i < 30; ++i) {
      if (!driver.Write(Record(1, i))) _exit(2);
    }
    _exit(driver.Flush() ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_EQ(status, 0);
  const auto tier = OpenTier();
  TierDriver driver(*tier);
  for (uint32_t i = 0; i < 30; ++i) {
    EXPECT_EQ(driver.ReadBack(Record(1, i)), Read::kRight) << i;
  }
}

// A disk on which the intent of an erase cannot be written.
class NoIntents : public RealStorage {
 public:
  bool fails = true;
  IoResult<FileId> OpenFile(FileId folder, const std::string& name, OpenMode mode) override {
    if (fails && name.find("erase-") != name.npos) return IoFailed(EIO);
    return RealStorage::OpenFile(folder, name, mode);
  }
};

TEST_F(DiskTierTest, AnEraseWithoutAnIntentSaysThatARestartForgetsIt) {
  NoIntents storage;
  options_.threads = 0;
  const auto open = [&] {
    auto tier = DiskTier::Open(options_, storage);
    EXPECT_TRUE(tier) << tier.error().message;
    return std::move(*tier);
  };
  {
    const auto tier = open();
    TierDriver driver(*tier, [&] { tier->RunPending(); });
    ASSERT_TRUE(driver.Write(Record(0, 0)));
    ASSERT_TRUE(driver.Flush());
    const auto erased = driver.Erase(TestRecord::Owner(0));
    ASSERT_FALSE(erased);
    EXPECT_EQ(erased.error().code, Code::kUnavailable);
    EXPECT_NE(erased.error().message.find("after a restart it must be asked for again"),
              std::string::npos)
        << erased.error().message;
    EXPECT_FALSE(tier->Has(Record(0, 0).facts.name)) << "the running server serves nothing of it";
  }
  storage.fails = false;
  const auto tier = open();
  TierDriver driver(*tier, [&] { tier->RunPending(); });
  EXPECT_TRUE(tier->Has(Record(0, 0).facts.name));
  const auto erased = driver.Erase(TestRecord::Owner(0));
  ASSERT_TRUE(erased) << erased.error().message;
  EXPECT_EQ(erased->blocks, 1u);
}

TEST_F(DiskTierTest, NothingOfAnErasedOwnerIsLeftAndOthersStay) {
  const std::string key_file =
      StoreFolder() / "keys" / KeyFileName(options_.secret, TestRecord::Owner(0));
  std::string key;
  {
    const auto tier = OpenTier();
    TierDriver driver(*tier);
    for (uint32_t i = 0; i < 8; ++i) {
      ASSERT_TRUE(driver.Write(Record(0, i, 0)));
      ASSERT_TRUE(driver.Write(Record(1, i, 1)));
    }
    ASSERT_TRUE(driver.Flush());
  }
  key = BytesOf(key_file).substr(40, 80);
  ASSERT_EQ(key.size(), 80u);
  // The sealed bytes of each record of the owner, by its place.
  const SegmentShape shape =
      ShapeOfSegment(options_.shape, SegmentBytesFor(options_.shape, *options_.cap_bytes));
  const std::string segment = BytesOf(StoreFolder() / SegmentFileName(0));
  std::vector<std::string> captured;
  for (uint32_t slot = 0; slot < 16; ++slot) {
    const std::string header = segment.substr(shape.header_at(slot), shape.record.header_bytes());
    const auto record = DecodePublic(std::as_bytes(std::span(header)).first<kPublicBytes>());
    ASSERT_TRUE(record) << slot;
    for (uint32_t i = 0; i < 8; ++i) {
      if (record->name != Record(0, i).facts.name) continue;
      captured.push_back(header.substr(208, 24));  // its salt
      captured.push_back(header.substr(kPublicBytes, 64));
      captured.push_back(segment.substr(shape.payload_at(slot), 100));
      captured.push_back(segment.substr(shape.payload_at(slot) + kPayload - 100, 100));
    }
  }
  ASSERT_EQ(captured.size(), 32u);
  const std::string before = AllBytes();
  for (const std::string& piece : captured) ASSERT_NE(before.find(piece), before.npos);
  const pid_t child = fork();
  if (child == 0) {
    const auto tier = OpenTier();
    TierDriver driver(*tier);
    const auto erased = driver.Erase(TestRecord::Owner(0));
    _exit(erased && erased->blocks == 8 ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_EQ(status, 0);
  const std::string after = AllBytes();
  EXPECT_FALSE(fs::exists(key_file));
  EXPECT_EQ(after.find(key), after.npos);
  for (const std::string& piece : captured) EXPECT_EQ(after.find(piece), after.npos);
  EXPECT_NE(BytesOf(fs::path(options_.folder) / "audit.jsonl").find("\"blocks\":8"),
            std::string::npos);
  const auto tier = OpenTier();
  TierDriver driver(*tier);
  for (uint32_t i = 0; i < 8; ++i) {
    EXPECT_FALSE(tier->Has(Record(0, i, 0).facts.name));
    EXPECT_EQ(driver.ReadBack(Record(1, i, 1)), Read::kRight);
  }
}

TEST_F(DiskTierTest, AnEraseReachesTheStoresOfOtherModels) {
  const fs::path first = StoreFolder();
  {
    const auto tier = OpenTier();
    TierDriver driver(*tier);
    for (uint32_t i = 0; i < 4; ++i) ASSERT_TRUE(driver.Write(Record(0, i)));
    ASSERT_TRUE(driver.Flush());
  }
  options_.identity = Digest{7};
  const auto other = OpenTier();
  TierDriver driver(*other);
  const auto erased = driver.Erase(TestRecord::Owner(0));
  ASSERT_TRUE(erased) << erased.error().message;
  EXPECT_EQ(erased->blocks, 4u);
  EXPECT_TRUE(fs::is_empty(first / "keys"));
  options_.identity = Digest{4, 5, 6};
  EXPECT_FALSE(OpenTier()->Has(Record(0, 0).facts.name));
}

TEST_F(DiskTierTest, AnEraseLeavesAndCountsTheStoresOfServersThatRun) {
  const auto one = OpenTier();
  TierDriver driver(*one);
  ASSERT_TRUE(driver.Write(Record(0, 0)));
  ASSERT_TRUE(driver.Flush());
  options_.identity = Digest{7};
  const auto other = OpenTier();
  TierDriver other_driver(*other);
  const auto erased = other_driver.Erase(TestRecord::Owner(0));
  ASSERT_TRUE(erased);
  EXPECT_EQ(erased->locked_stores, 1u);
  EXPECT_EQ(driver.ReadBack(Record(0, 0)), Read::kRight);
}

TEST_F(DiskTierTest, AnEraseThatBrokeOffIsFinishedByTheNextStart) {
  {
    const auto tier = OpenTier();
    TierDriver driver(*tier);
    for (uint32_t i = 0; i < 4; ++i) ASSERT_TRUE(driver.Write(Record(0, i)));
    ASSERT_TRUE(driver.Flush());
  }
  const std::string name = KeyFileName(options_.secret, TestRecord::Owner(0));
  {
    OpenedFile root(storage_, *storage_.OpenRoot(options_.folder));
    ASSERT_TRUE(WriteIntent(storage_, root.id(), options_.secret,
                            {StoreFolder().filename().string(), name}));
  }
  const auto tier = OpenTier();
  EXPECT_FALSE(tier->Has(Record(0, 0).facts.name));
  EXPECT_FALSE(fs::exists(StoreFolder() / "keys" / name));
  for (const auto& entry : fs::directory_iterator(options_.folder)) {
    EXPECT_FALSE(entry.path().filename().string().starts_with("erase-"));
  }
}

TEST_F(DiskTierTest, WaitsForAStoreThatAnotherHasAndTakesItOver) {
  auto first = OpenTier();
  TierDriver driver(*first);
  ASSERT_TRUE(driver.Write(Record(0, 0)));
  ASSERT_TRUE(driver.Flush());
  const auto second = OpenTier();
  EXPECT_EQ(second->Stats().state, TierStats::State::kWaiting);
  EXPECT_FALSE(second->Has(Record(0, 0).facts.name));
  TierDriver second_driver(*second);
  EXPECT_EQ(second_driver.Write(Record(0, 1)).error(), WriteRefusal::kOff);
  EXPECT_EQ(second_driver.Flush().error().code, Code::kUnavailable);
  first.reset();
  ASSERT_TRUE(
      second_driver.WaitUntil([&] { return second->Stats().state == TierStats::State::kOn; }));
  EXPECT_EQ(second_driver.ReadBack(Record(0, 0)), Read::kRight);
}

TEST_F(DiskTierTest, KeepsTheCapAndEvictsTheColdestLeavesFirst) {
  options_.threads = 0;
  const auto tier = OpenTier();
  TierDriver driver(*tier, [&] { tier->RunPending(); });
  uint64_t most = 0;
  const auto bytes = [&] {
    OpenedFile root(storage_, *storage_.OpenRoot(options_.folder));
    const auto tree = storage_.TreeBytes(root.id(), kSegmentPrefix);
    return tree->whole_bytes + tree->other_bytes;
  };
  // A chain that is used all the time, and chains that are used once.
  for (uint32_t i = 0; i < 10; ++i) ASSERT_TRUE(driver.Write(Record(0, i), true));
  ASSERT_TRUE(driver.Flush());
  uint32_t written = 10;
  for (uint32_t chain = 1; written < Rounds(1500u, 900u); ++chain) {
    for (uint32_t i = 10; i-- > 0;) tier->Touch(Record(0, i).facts.name);
    for (uint32_t i = 0; i < 10; ++i, ++written) {
      ASSERT_TRUE(driver.Write(Record(chain, i), true)) << written;
    }
    ASSERT_TRUE(driver.Flush());
    most = std::max(most, bytes());
    for (uint32_t i = 0; i < 10; ++i) EXPECT_TRUE(tier->Has(Record(0, i).facts.name));
    // The beginning of each chain is left.
    for (uint32_t c = 1; c < chain; ++c) {
      for (uint32_t i = 1; i < 10; ++i) {
        EXPECT_LE(tier->Has(Record(c, i).facts.name), tier->Has(Record(c, i - 1).facts.name));
      }
    }
    ASSERT_TRUE(tier->CheckInvariants());
  }
  EXPECT_LE(most, *options_.cap_bytes);
  EXPECT_GT(most, *options_.cap_bytes * 7 / 10);
  EXPECT_GT(tier->Stats().evicted_cap, Rounds(500u, 100u));
}

TEST_F(DiskTierTest, PastHalfOfTheBudgetOnlyWhatWasUsedAgainIsWritten) {
  options_.threads = 0;
  const auto tier = OpenTier();
  TierDriver driver(*tier, [&] { tier->RunPending(); });
  uint32_t once = 0, again = 0;
  WriteRefusal why = WriteRefusal::kKnown;
  for (uint32_t i = 0; i < 10000; ++i) {
    const auto written = driver.Write(Record(i, 0), false);
    if (!written) {
      why = written.error();
      break;
    }
    if (i % 50 == 0) tier->RunPending();
    ++once;
  }
  EXPECT_EQ(why, WriteRefusal::kBudget);
  for (uint32_t i = 10000; i < 20000; ++i) {
    if (!driver.Write(Record(i, 0), true)) break;
    if (i % 50 == 0) tier->RunPending();
    ++again;
  }
  const uint64_t slots = *options_.cap_bytes / options_.shape.slot_bytes();
  EXPECT_NEAR(once, static_cast<double>(slots), 2);
  EXPECT_NEAR(again, once, 2);
}

TEST_F(DiskTierTest, ASmallerCapIsKeptFromTheStart) {
  options_.cap_bytes = uint64_t{16} << 20;
  {
    const auto tier = OpenTier();
    TierDriver driver(*tier);
    for (uint32_t i = 0; i < 1000; ++i) {
      ASSERT_TRUE(driver.Write(Record(i, 0), true));
    }
    ASSERT_TRUE(driver.Flush());
  }
  options_.cap_bytes = uint64_t{6} << 20;
  const auto tier = OpenTier();
  OpenedFile root(storage_, *storage_.OpenRoot(options_.folder));
  const auto tree = storage_.TreeBytes(root.id(), kSegmentPrefix);
  EXPECT_LE(tree->whole_bytes + tree->other_bytes, *options_.cap_bytes);
  EXPECT_GT(tier->Stats().blocks, 100u);
}

TEST_F(DiskTierTest, NoDamageOfAFileIsServed) {
  const uint32_t kRecords = 3;
  {
    const auto tier = OpenTier();
    TierDriver driver(*tier);
    for (uint32_t i = 0; i < kRecords; ++i) ASSERT_TRUE(driver.Write(Record(i, 0)));
    ASSERT_TRUE(driver.Flush());
  }
  options_.threads = 0;
  const SegmentShape shape =
      ShapeOfSegment(options_.shape, SegmentBytesFor(options_.shape, *options_.cap_bytes));
  const fs::path segment = StoreFolder() / SegmentFileName(0);
  std::vector<std::pair<fs::path, uint64_t>> flips;
  for (uint64_t i = 0; i < 512; i += 7) flips.emplace_back(segment, i);
  for (uint64_t i = 0; i < shape.record.header_bytes(); i += 13) {
    flips.emplace_back(segment, shape.header_at(1) + i);
  }
  for (uint64_t i = 0; i < kPayload; i += 397) {
    flips.emplace_back(segment, shape.payload_at(1) + i);
  }
  const fs::path key = StoreFolder() / "keys" / KeyFileName(options_.secret, TestRecord::Owner(0));
  for (uint64_t i = 0; i < kKeyFileBytes; i += 9) flips.emplace_back(key, i);
  const fs::path copy = parent_ / "copy";
  fs::copy(options_.folder, copy, fs::copy_options::recursive);
  for (const auto& [path, at] : flips) {
    fs::remove_all(options_.folder);
    fs::copy(copy, options_.folder, fs::copy_options::recursive);
    fs::permissions(options_.folder, fs::perms::owner_all);
    {
      std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(static_cast<std::streamoff>(at));
      const char byte = static_cast<char>(file.get() ^ 0x20);
      file.seekp(static_cast<std::streamoff>(at));
      file.put(byte);
    }
    const auto tier = OpenTier();
    ASSERT_NE(tier, nullptr);
    TierDriver driver(*tier, [&] { tier->RunPending(); });
    for (uint32_t i = 0; i < kRecords; ++i) {
      const Read read = driver.ReadBack(Record(i, 0));
      EXPECT_TRUE(read == Read::kRight || read == Read::kNotThere || read == Read::kDamaged)
          << path << " at " << at << ": record " << i;
      const bool is_hit = path != segment || at < shape.header_at(0) || i == 1;
      EXPECT_EQ(read == Read::kRight, !is_hit) << path << " at " << at << ": record " << i;
    }
  }
}

TEST_F(DiskTierTest, ARecordInAnotherSlotOrAnotherSegmentIsNotFound) {
  {
    const auto tier = OpenTier();
    TierDriver driver(*tier);
    for (uint32_t i = 0; i < 2; ++i) ASSERT_TRUE(driver.Write(Record(i, 0)));
    ASSERT_TRUE(driver.Flush());
  }
  options_.threads = 0;
  const SegmentShape shape =
      ShapeOfSegment(options_.shape, SegmentBytesFor(options_.shape, *options_.cap_bytes));
  const fs::path path = StoreFolder() / SegmentFileName(0);
  std::string bytes = BytesOf(path);
  // Slot 0 as slot 5, and nothing in slot 0.
  bytes.replace(shape.header_at(5), 512, bytes.substr(shape.header_at(0), 512));
  bytes.replace(shape.payload_at(5), shape.record.stride_bytes(),
                bytes.substr(shape.payload_at(0), shape.record.stride_bytes()));
  bytes.replace(shape.header_at(0), 512, std::string(512, '\0'));
  std::ofstream(path, std::ios::binary) << bytes;
  for (const Fault fault : {Fault::kNone, Fault::kStaleSlot}) {
    InjectFault(fault);
    const auto tier = OpenTier();
    EXPECT_EQ(tier->Has(Record(0, 0).facts.name), fault == Fault::kStaleSlot);
    EXPECT_TRUE(tier->Has(Record(1, 0).facts.name));
  }
  // Puts the same bytes into a segment of another generation.
  const HmacKey head_key = HeadKeyOf(options_.secret);
  auto head = DecodeHead(head_key, std::as_bytes(std::span(bytes)).first<kHeadBytes>());
  ASSERT_TRUE(head);
  head->generation ^= 1;
  std::array<std::byte, kHeadBytes> encoded;
  EncodeHead(head_key, *head, encoded);
  std::memcpy(bytes.data(), encoded.data(), encoded.size());
  for (const Fault fault : {Fault::kNone, Fault::kUncheckedGeneration}) {
    InjectFault(fault);
    std::ofstream(path, std::ios::binary) << bytes;
    // Where nothing is found, the owner has no record and its key file would go.
    const fs::path keys = StoreFolder() / "keys", kept = parent_ / "keys";
    if (!fs::exists(kept)) fs::copy(keys, kept, fs::copy_options::recursive);
    fs::copy(kept, keys, fs::copy_options::recursive | fs::copy_options::overwrite_existing);
    EXPECT_EQ(OpenTier()->Has(Record(1, 0).facts.name), fault == Fault::kUncheckedGeneration);
  }
}

TEST_F(DiskTierTest, ForeignAndBrokenFilesDoNoHarm) {
  {
    const auto tier = OpenTier();
    TierDriver driver(*tier);
    ASSERT_TRUE(driver.Write(Record(0, 0)));
    ASSERT_TRUE(driver.Flush());
  }
  const std::string segment = BytesOf(StoreFolder() / SegmentFileName(0));
  std::ofstream(StoreFolder() / SegmentFileName(3)) << segment;  // a copy under another number
  std::ofstream(StoreFolder() / SegmentFileName(4)) << "";
  std::ofstream(StoreFolder() / SegmentFileName(5)) << segment.substr(0, 10000);
  std::ofstream(StoreFolder() / "about.json") << "{\"written_bytes\": \"x\", [";
  std::ofstream(StoreFolder() / "notes.txt") << "mine";
  std::ofstream(StoreFolder() / "keys" / std::string(64, 'a')) << "x";
  std::ofstream(StoreFolder() / "keys" / std::string(64, 'b')) << "";
  fs::create_symlink("/etc/passwd", StoreFolder() / SegmentFileName(6));
  fs::create_directory(StoreFolder() / SegmentFileName(7));
  const auto tier = OpenTier();
  ASSERT_NE(tier, nullptr);
  TierDriver driver(*tier);
  EXPECT_EQ(driver.ReadBack(Record(0, 0)), Read::kRight);
  ASSERT_TRUE(driver.Write(Record(0, 1)));
  ASSERT_TRUE(driver.Flush());
  EXPECT_EQ(BytesOf(StoreFolder() / "notes.txt"), "mine");
}

TEST_F(DiskTierTest, RefusesFoldersThatItCannotTrust) {
  const std::string name = options_.folder;
  options_.folder = "";
  EXPECT_EQ(OpenError().code, Code::kInvalidArgument);
  options_.folder = parent_ / "file";
  std::ofstream(options_.folder) << "x";
  EXPECT_EQ(OpenError().message, options_.folder + " is not a folder");
  options_.folder = parent_ / "link";
  fs::create_directory(parent_ / "target");
  fs::create_directory_symlink(parent_ / "target", options_.folder);
  EXPECT_NE(OpenError().message.find("is a symbolic link"), std::string::npos);
  options_.folder = parent_ / "full";
  fs::create_directory(options_.folder);
  std::ofstream(fs::path(options_.folder) / "thesis.tex") << "x";
  EXPECT_NE(OpenError().message.find("not Kvasir's"), std::string::npos);
  options_.folder = parent_ / "open";
  fs::create_directory(options_.folder);
  chmod(options_.folder.c_str(), 0777);
  EXPECT_EQ(OpenError().code, Code::kPermissionDenied);
  options_.folder = name;
  options_.cap_bytes = 3 << 20;
  EXPECT_EQ(OpenError().field, "disk_cap");
  options_.cap_bytes = uint64_t{8} << 20;
  options_.ttl_hours = 0;
  EXPECT_EQ(OpenError().field, "disk_ttl");
  options_.ttl_hours = 1;
  ASSERT_NE(OpenTier(), nullptr);
  struct stat about;
  for (const auto& entry : fs::recursive_directory_iterator(options_.folder)) {
    ASSERT_EQ(stat(entry.path().c_str(), &about), 0);
    EXPECT_EQ(about.st_mode & 0777, entry.is_directory() ? 0700u : 0600u) << entry.path();
  }
}

TEST_F(DiskTierTest, AFolderThatGoesIsLeftWithoutAnAnswerThatIsWrong) {
  const auto tier = OpenTier();
  TierDriver driver(*tier);
  ASSERT_TRUE(driver.Write(Record(0, 0)));
  ASSERT_TRUE(driver.Flush());
  fs::remove_all(options_.folder);
  EXPECT_EQ(driver.ReadBack(Record(0, 0)), Read::kFailed);
  EXPECT_FALSE(tier->Has(Record(0, 0).facts.name));
  for (uint32_t i = 1; i < 20; ++i) (void)driver.Write(Record(i, 0));
  EXPECT_EQ(driver.Flush().error().code, Code::kUnavailable);
}

TEST_F(DiskTierTest, AFlushIntoAFolderThatWasRemovedMovedOrReplacedSaysSo) {
  const auto elsewhere = parent_ / "elsewhere";
  const std::function<void()> losses[] = {
      [&] { fs::remove_all(options_.folder); },
      [&] { fs::rename(options_.folder, elsewhere); },
      [&] { fs::remove_all(StoreFolder()); },
      [&] {
        fs::rename(options_.folder, elsewhere);
        fs::copy(elsewhere, options_.folder, fs::copy_options::recursive);
      },
  };
  for (const auto& lose : losses) {
    fs::remove_all(options_.folder);
    fs::remove_all(elsewhere);
    const auto tier = OpenTier();
    TierDriver driver(*tier);
    ASSERT_TRUE(driver.Write(Record(0, 0)));
    ASSERT_TRUE(driver.Flush());
    lose();
    const auto flushed = driver.Flush();
    ASSERT_FALSE(flushed);
    EXPECT_EQ(flushed.error().code, Code::kUnavailable);
    EXPECT_EQ(flushed.error().message,
              "disk tier: " + options_.folder + ": the folder was removed or moved");
    EXPECT_EQ(tier->Stats().state, TierStats::State::kBroken);
    EXPECT_EQ(tier->Stats().reason, "the folder was removed or moved");
  }
}

TEST_F(DiskTierTest, AFolderThatWasRemovedIsNoticedWithoutARequest) {
  options_.threads = 0;
  const auto gate = std::make_shared<BlockingStorage::Gate>();
  BlockingStorage storage(gate);
  const auto tier = DiskTier::Open(options_, storage);
  ASSERT_TRUE(tier) << tier.error().message;
  (*tier)->RunPending();
  EXPECT_EQ((*tier)->Stats().state, TierStats::State::kOn);
  fs::remove_all(options_.folder);
  gate->PassTime(10);
  (*tier)->RunPending();
  EXPECT_EQ((*tier)->Stats().reason, "the folder was removed or moved");
  gate->PassTime(60);  // then it is made again
  (*tier)->RunPending();
  EXPECT_EQ((*tier)->Stats().state, TierStats::State::kOn);
  EXPECT_TRUE(fs::exists(StoreFolder()));
}

TEST_F(DiskTierTest, TooManyErrorsSayWhatTheLastOneWas) {
  options_.threads = 0;
  const auto tier = OpenTier();
  TierDriver driver(*tier, [&] { tier->RunPending(); });
  for (uint32_t i = 0; i < 8; ++i) ASSERT_TRUE(driver.Write(Record(i, 0)));
  ASSERT_TRUE(driver.Flush());
  for (const auto& entry : fs::directory_iterator(StoreFolder())) {
    if (entry.path().extension() == ".kvs") fs::remove(entry.path());
  }
  for (uint32_t i = 0; i < 8; ++i) EXPECT_EQ(driver.ReadBack(Record(i, 0)), Read::kFailed);
  tier->RunPending();
  EXPECT_EQ(tier->Stats().reason, "too many errors, last error: No such file or directory");
}

}  // namespace
}  // namespace kvasir
