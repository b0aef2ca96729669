#include "tier/tier_pair.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "base/result.h"
#include "tier/far_tier_for_test.h"
#include "tier/tier_driver_for_test.h"

namespace kvasir {
namespace {

// A tier that answers erases, forgets and flushes when the test says so.
class PartOfPair : public MemoryTier {
 public:
  PartOfPair() : MemoryTier({.payload_bytes = kSmallPayload}) {}
  void Erase(const Digest&, std::function<void(Result<TierErased>)> done) override {
    erased = std::move(done);
  }
  void EraseHere(const Digest&, std::function<void(Result<TierErased>)> done) override {
    ++num_here;
    done(TierErased{});
  }
  void Forget(ForgetFacts facts, std::function<void(Result<TierErased>)> done) override {
    forgotten = std::move(facts);
    erased = std::move(done);
  }
  void Flush(std::function<void(Result<TierFlushed>)> done) override { flushed = std::move(done); }

  std::function<void(Result<TierErased>)> erased;
  std::function<void(Result<TierFlushed>)> flushed;
  ForgetFacts forgotten;
  int num_here = 0;
};

class TierPairTest : public testing::Test {
 protected:
  TierErased OfDisk() { return {.blocks = 7, .bytes = 700}; }
  TierErased OfRemote() {
    return {.blocks = 3, .bytes = 300, .remote = RemoteErased{.epoch = 9, .records = 3}};
  }
  std::function<void(Result<TierErased>)> Keep() {
    return [this](Result<TierErased> erased) { answers_.push_back(std::move(erased)); };
  }

  PartOfPair disk_, remote_;
  TierPair pair_{disk_, remote_};
  std::vector<Result<TierErased>> answers_;
};

TEST_F(TierPairTest, AnEraseAnswersOnceWhenBothHave) {
  for (const bool disk_first : {true, false}) {
    answers_.clear();
    pair_.Erase(TestRecord::Owner(0), Keep());
    if (disk_first) disk_.erased(OfDisk());
    remote_.erased(OfRemote());
    EXPECT_EQ(answers_.size(), disk_first ? 1u : 0u);
    if (!disk_first) disk_.erased(OfDisk());
    ASSERT_EQ(answers_.size(), 1u);
    ASSERT_TRUE(answers_[0]);
    EXPECT_EQ(answers_[0]->blocks, 7u);
    EXPECT_EQ(answers_[0]->bytes, 700u);
    ASSERT_TRUE(answers_[0]->remote);
    EXPECT_EQ(answers_[0]->remote->epoch, 9u);
  }
}

// Other servers' stores stay, whatever becomes of the fleet's.
TEST_F(TierPairTest, AnErrorOfOneIsTheAnswerBesideWhatTheOtherDid) {
  for (int failing = 0; failing < 4; ++failing) {
    answers_.clear();
    pair_.Erase(TestRecord::Owner(0), Keep());
    const Error error{Code::kIoError, "it fails"};
    PartOfPair* const parts[] = {&disk_, &remote_};
    PartOfPair& bad = *parts[failing % 2];
    PartOfPair& good = *parts[1 - failing % 2];
    if (failing < 2) bad.erased(tl::unexpected(error));
    good.erased(TierErased{.blocks = 7, .locked_stores = 2});
    if (failing >= 2) bad.erased(tl::unexpected(error));
    ASSERT_EQ(answers_.size(), 1u) << failing;
    ASSERT_TRUE(answers_[0] && answers_[0]->error) << failing;
    EXPECT_EQ(answers_[0]->error->message, "it fails");
    EXPECT_EQ(answers_[0]->blocks, 7u);
    EXPECT_EQ(answers_[0]->locked_stores, 2u);
  }
}

// What stays on the disk is said too where the store never erases anything.
TEST_F(TierPairTest, ErrorsOfBothAreTheAnswer) {
  const Error of_disk{Code::kUnavailable, "the disk fails"};
  Error of_remote{Code::kUnavailable, "the store is only read"};
  of_remote.cause = Cause::kReadOnly;
  for (const bool disk_first : {true, false}) {
    answers_.clear();
    pair_.Erase(TestRecord::Owner(0), Keep());
    if (disk_first) disk_.erased(tl::unexpected(of_disk));
    remote_.erased(tl::unexpected(of_remote));
    if (!disk_first) disk_.erased(tl::unexpected(of_disk));
    ASSERT_EQ(answers_.size(), 1u);
    ASSERT_FALSE(answers_[0]);
    EXPECT_EQ(answers_[0].error().message, disk_first ? "the disk fails; the store is only read"
                                                      : "the store is only read; the disk fails");
    EXPECT_FALSE(answers_[0].error().cause) << "the disk may be asked again";
  }
}

TEST_F(TierPairTest, AFlushFailsWhereOneDoes) {
  int told = 0;
  pair_.Flush([&](Result<TierFlushed> flushed) {
    ++told;
    EXPECT_FALSE(flushed);
  });
  remote_.flushed(Fail(Code::kUnavailable, "off"));
  EXPECT_EQ(told, 0);
  disk_.flushed(TierFlushed{});
  EXPECT_EQ(told, 1);
}

TEST_F(TierPairTest, AForgetReachesBothAndAsksOnceWhatStays) {
  ForgetFacts facts;
  facts.owner = TestRecord::Owner(0);
  facts.keys = {TestRecord::Name(0, 1).key, TestRecord::Name(0, 2).key};
  std::atomic<int> calls = 0;
  facts.kept = [&calls] {
    ++calls;
    return std::vector<BlockKey>{TestRecord::Name(0, 2).key};
  };
  pair_.Forget(facts, Keep());
  EXPECT_EQ(disk_.forgotten.keys, facts.keys);
  EXPECT_EQ(remote_.forgotten.keys, facts.keys);
  std::vector<std::thread> threads;
  for (PartOfPair* part : {&disk_, &remote_}) {
    threads.emplace_back([part, &facts] {
      EXPECT_EQ(part->forgotten.kept(), std::vector<BlockKey>{facts.keys[1]});
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(calls, 1);
  disk_.erased(OfDisk());
  EXPECT_TRUE(answers_.empty());
  remote_.erased(OfRemote());
  ASSERT_EQ(answers_.size(), 1u);
  EXPECT_TRUE(answers_[0]);
}

TEST_F(TierPairTest, AForgetAsksAgainWhatStaysWhereThatFailed) {
  ForgetFacts facts;
  facts.owner = TestRecord::Owner(0);
  facts.keys = {TestRecord::Name(0, 1).key};
  bool fails = true;
  facts.kept = [&] {
    if (std::exchange(fails, false)) throw std::bad_alloc();
    return facts.keys;
  };
  pair_.Forget(facts, Keep());
  EXPECT_THROW(disk_.forgotten.kept(), std::bad_alloc);
  EXPECT_EQ(remote_.forgotten.kept(), facts.keys);
  EXPECT_EQ(disk_.forgotten.kept(), facts.keys);
}

TEST_F(TierPairTest, AnEraseHereLeavesTheStore) {
  pair_.EraseHere(TestRecord::Owner(0), Keep());
  EXPECT_EQ(remote_.num_here, 1);
  EXPECT_FALSE(remote_.erased);
  EXPECT_TRUE(answers_.empty());
  disk_.erased(OfDisk());
  ASSERT_EQ(answers_.size(), 1u);
}

}  // namespace
}  // namespace kvasir
