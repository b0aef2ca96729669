#include "tier/erase_files.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "base/hex.h"
#include "base/log.h"
#include "tier/store_for_test.h"

namespace kvasir {
namespace {

class EraseFilesTest : public OpenStoreTest {
 protected:
  EraseFilesTest() { SetLogLevel(LogLevel::kError); }

  FileId root() const { return store_->writing_files->root.id(); }
  FileId keys() const { return store_->writing_files->keys.id(); }
  std::string KeyNameOf(uint32_t owner) const {
    return KeyFileName(options_.secret, TestRecord::Owner(owner));
  }
  EraseIntent IntentOf(uint32_t owner) const { return {ToHex(store_->id), KeyNameOf(owner)}; }
  // Returns the key files that the intents of a secret name.
  std::vector<std::string> Intents(const Secret& secret) {
    std::vector<std::string> names;
    const auto intents = ListIntents(storage_, root(), secret);
    EXPECT_TRUE(intents);
    for (const EraseIntent& intent : *intents) {
      EXPECT_EQ(intent.store, ToHex(store_->id));
      names.push_back(intent.key_file_name);
    }
    return names;
  }
  StoresErased Erase(uint32_t owner) {
    StoresErased erased;
    EXPECT_TRUE(EraseOwner(storage_, folder(), keys(), options_.secret, store_->id,
                           KeyNameOf(owner), &erased));
    return erased;
  }
  std::string Audit() {
    return ReadSmallFile(storage_, root(), std::string(kAuditName), 2 * kMaxAuditBytes)
        .value_or("");
  }
};

TEST_F(EraseFilesTest, AnIntentStandsUntilItIsRemovedAndOnlyForItsSecret) {
  ASSERT_TRUE(WriteIntent(storage_, root(), options_.secret, IntentOf(1)));
  EXPECT_EQ(Intents(options_.secret), std::vector<std::string>{KeyNameOf(1)});
  EXPECT_EQ(Intents(Secret{9}), std::vector<std::string>{});
  EXPECT_TRUE(RemoveIntent(storage_, root(), IntentOf(1)));
  EXPECT_TRUE(RemoveIntent(storage_, root(), IntentOf(1))) << "it may be gone already";
  EXPECT_EQ(Intents(options_.secret), std::vector<std::string>{});
}

TEST_F(EraseFilesTest, AnIntentThatTheSecretDidNotMakeIsNone) {
  ASSERT_TRUE(WriteIntent(storage_, root(), options_.secret, IntentOf(1)));
  // The text of one under the name of another would erase another owner.
  ASSERT_TRUE(storage_.Rename(root(), IntentName(IntentOf(1)), IntentName(IntentOf(2))));
  EXPECT_EQ(Intents(options_.secret), std::vector<std::string>{});
  for (const char* name : {"erase-", "erase-x-y", "erase-aa"}) {
    ASSERT_TRUE(PublishFile(storage_, root(), name, "text", FileSync::kSynced));
  }
  EXPECT_EQ(Intents(options_.secret), std::vector<std::string>{});
}

TEST_F(EraseFilesTest, ZerosTheSlotsOfAListAndNoOthers) {
  AddSegment(0);
  std::vector<SlotRef> slots;
  for (uint32_t i = 0; i < 6; ++i) {
    PutRecord(Small(i));
    slots.push_back(*SlotOf(Small(i)));
  }
  std::array<uint32_t, 4> list = {slots[0].slot, slots[1].slot, slots[3].slot, slots[5].slot};
  std::ranges::sort(list);
  const OpenedFile file(storage_,
                        *storage_.OpenFile(folder(), SegmentFileName(0), OpenMode::kWrite));
  ASSERT_TRUE(EraseSlots(storage_, file.id(), ShapeOfSegment(options_.shape, kSegmentBytes), list));
  for (uint32_t i = 0; i < 6; ++i) {
    EXPECT_EQ(IsZeroOnDisk(slots[i]), i != 2 && i != 4) << i;
  }
}

TEST_F(EraseFilesTest, ErasesAnOwnersKeyAndSlotsInAStore) {
  AddSegment(0);
  for (uint32_t i = 0; i < 3; ++i) PutRecord(Small(i, 0, 0));
  PutRecord(Small(9, 0, 1));
  const StoresErased erased = Erase(0);
  EXPECT_EQ(erased.blocks, 3u);
  EXPECT_EQ(erased.bytes, 3 * options_.shape.slot_bytes());
  EXPECT_FALSE(storage_.HasFile(KeyNameOf(0)));
  EXPECT_TRUE(IsZeroOnDisk(*SlotOf(Small(1))));
  EXPECT_TRUE(storage_.HasFile(KeyNameOf(1)));
  EXPECT_FALSE(IsZeroOnDisk(*SlotOf(Small(9, 0, 1))));
  EXPECT_EQ(Erase(0).blocks, 0u);
}

TEST_F(EraseFilesTest, SlotsWithoutAKeyLeaveUnlessSomeKeyCannotBeRead) {
  AddSegment(0);
  PutRecord(Small(0, 0, 0));
  PutRecord(Small(1, 0, 1));
  const SlotRef lost = *SlotOf(Small(1, 0, 1));
  ASSERT_TRUE(storage_.Unlink(keys(), KeyNameOf(1)));
  // The lost record may be of this owner.
  ASSERT_TRUE(PublishFile(storage_, keys(), KeyNameOf(2), "damaged", FileSync::kSynced));
  EXPECT_EQ(Erase(0).blocks, 1u);
  EXPECT_TRUE(IsZeroOnDisk(*SlotOf(Small(0, 0, 0))));
  EXPECT_FALSE(IsZeroOnDisk(lost));
  EXPECT_EQ(Erase(2).blocks, 1u) << "now no key is unread";
  EXPECT_TRUE(IsZeroOnDisk(lost));
}

TEST_F(EraseFilesTest, TheAuditSaysWhatWasErased) {
  const StoresErased erased{.blocks = 3, .bytes = 4096, .locked_stores = 1};
  EXPECT_EQ(AuditLine("ab", 17, erased, EraseFinish::kLater),
            R"({"erased":"ab","unix_s":17,"blocks":3,"bytes":4096,"locked_stores":1,)"
            R"("finished_later":true})");
  EXPECT_TRUE(AuditLine("ab", 17, erased, EraseFinish::kFirstTry).ends_with(":false}"));
  ASSERT_TRUE(AppendAudit(storage_, root(), "one"));
  ASSERT_TRUE(AppendAudit(storage_, root(), "two"));
  EXPECT_EQ(Audit(), "one\ntwo\n");
}

TEST_F(EraseFilesTest, AFullAuditLosesItsOlderHalf) {
  const std::string line(kMaxAuditBytes / 8 - 1, 'x');
  for (char c = 'a'; c < 'i'; ++c) ASSERT_TRUE(AppendAudit(storage_, root(), c + line.substr(1)));
  EXPECT_EQ(Audit().size(), kMaxAuditBytes);
  ASSERT_TRUE(AppendAudit(storage_, root(), "last"));
  const std::string audit = Audit();
  EXPECT_LE(audit.size(), kMaxAuditBytes / 2 + 5);
  EXPECT_GE(audit.size(), kMaxAuditBytes / 4);
  EXPECT_TRUE(audit.ends_with("\nlast\n"));
  EXPECT_GT(audit[0], 'c') << "the older ones went";
  EXPECT_EQ(audit.find('\n') + 1, kMaxAuditBytes / 8) << "its first line is whole";
}

}  // namespace
}  // namespace kvasir
