#include "cache/kv_loader.h"

#include <gtest/gtest.h>

#include <future>
#include <limits>
#include <memory>

#include "cache/cache_driver_for_test.h"
#include "tier/memory_tier_for_test.h"

namespace kvasir {
namespace {

constexpr uint64_t kStamp = 7, kNoEnd = std::numeric_limits<uint64_t>::max();

// A cache whose namespace was erased from the pool, while the tier has kept what it wrote.
class KvLoaderTest : public testing::Test {
 protected:
  void Make(MemoryTierOptions tier = {}, const KvLayout& layout = TinyLayout()) {
    KvCacheOptions options = OptionsFor(32, 16, &DefaultEvictionChoice(), layout);
    tier.payload_bytes = options.layout.block_bytes();
    tier_ = std::make_unique<MemoryTier>(tier);
    options.tier = tier_.get();
    driver_ = std::make_unique<CacheDriver>(options);
    ns_ = cache().EnterNamespace("alice", IdentityNamed(1));
    driver_->Run(ns_, kStamp, prompt_);
    while (!cache().SealQueued(kNoEnd, for_each_)) {
    }
    std::promise<void> stored;
    tier_->Flush([&](const Result<TierFlushed>&) { stored.set_value(); });
    stored.get_future().wait();
    cache().Erase(ns_);
  }
  KvCache& cache() { return *driver_->cache; }
  // Starts a sequence that loads.
  KvSequence Start(KvLoad* load, uint32_t* offered) {
    MatchResult match = cache().Match(ns_, prompt_, {});
    *offered = match.num_offered();
    *load = cache().TakeOffer(match);
    KvSequence sequence =
        cache().Fetch(std::move(match), static_cast<uint32_t>(prompt_.size()) + 64);
    cache().BindLoad(sequence, *load);
    return sequence;
  }
  KvLoad::Front Continue(KvSequence& sequence, KvLoad& load) {
    KvLoad::Front front;
    do {
      load.AskAhead(0);
      front = cache().ContinueLoad(sequence, load, prompt_, for_each_, kNoEnd);
    } while (front == KvLoad::Front::kReading);
    return front;
  }

  const Tokens prompt_ = TokensFrom(1, 83);  // five blocks and a tail
  const ForEach for_each_ = [](uint32_t items, const std::function<void(uint32_t)>& fn) {
    for (uint32_t i = 0; i < items; ++i) fn(i);
  };
  std::unique_ptr<MemoryTier> tier_;
  std::unique_ptr<CacheDriver> driver_;
  NamespaceId ns_{};
};

TEST_F(KvLoaderTest, BringsWholeBlocksAndTheirBytes) {
  Make();
  KvLoad load;
  uint32_t offered;
  KvSequence sequence = Start(&load, &offered);
  EXPECT_EQ(offered, 80u);
  EXPECT_EQ(load.num_records(), 5u);
  EXPECT_EQ(Continue(sequence, load), KvLoad::Front::kEnded);
  EXPECT_EQ(sequence.num_committed(), 80u);
  EXPECT_EQ(load.loaded_tokens(), 80u);
  EXPECT_EQ(load.loaded_bytes(), 5 * cache().layout().block_bytes());
  driver_->Verify(sequence, kStamp);
  EXPECT_EQ(cache().counters().reused_disk, 80u);
}

TEST_F(KvLoaderTest, BringsTheWindowsThatTheNextTokenSees) {
  Make({}, LayoutOf({0, 20}));
  KvLoad load;
  uint32_t offered;
  KvSequence sequence = Start(&load, &offered);
  EXPECT_EQ(offered, 80u);
  EXPECT_EQ(load.num_records(), 5u + 2);  // tokens 61 to 79 lie in two blocks
  EXPECT_EQ(Continue(sequence, load), KvLoad::Front::kEnded);
  EXPECT_EQ(sequence.num_committed(), 80u);
  driver_->Verify(sequence, kStamp);
}

TEST_F(KvLoaderTest, StopsBeforeADamagedBlock) {
  Make({.damaged_at = 2});
  KvLoad load;
  uint32_t offered;
  KvSequence sequence = Start(&load, &offered);
  EXPECT_EQ(Continue(sequence, load), KvLoad::Front::kMissing);
  EXPECT_TRUE(load.is_broken());
  EXPECT_EQ(sequence.num_committed(), 32u);
  driver_->Verify(sequence, kStamp);
  EXPECT_TRUE(driver_->Append(sequence, kStamp, std::span(prompt_).subspan(32, 16)));
  EXPECT_EQ(Continue(sequence, load), KvLoad::Front::kEnded);  // those after it are right
  EXPECT_EQ(sequence.num_committed(), 80u);
  driver_->Verify(sequence, kStamp);
}

TEST_F(KvLoaderTest, WhatWillNotComeIsComputedInOneGo) {
  Make({.fails_at = 1, .num_fail = 3});
  KvLoad load;
  uint32_t offered;
  KvSequence sequence = Start(&load, &offered);
  EXPECT_EQ(Continue(sequence, load), KvLoad::Front::kMissing);
  EXPECT_EQ(sequence.num_committed(), 16u);
  while (load.TokensBeforeRead(16) < 48) {  // the last read that fails may be under way
  }
  EXPECT_EQ(load.TokensBeforeRead(16), 48u) << "to the block that comes";
  EXPECT_TRUE(driver_->Append(sequence, kStamp, std::span(prompt_).subspan(16, 48)));
  EXPECT_EQ(Continue(sequence, load), KvLoad::Front::kEnded);
  EXPECT_EQ(sequence.num_committed(), 80u);
  EXPECT_EQ(load.loaded_tokens(), 32u);
  driver_->Verify(sequence, kStamp);
}

TEST_F(KvLoaderTest, ALoadThatMovesGivesItsBuffersBackOnce) {
  Make({.num_buffers = 4});
  KvLoad first, second;
  uint32_t offered;
  KvSequence sequence = Start(&first, &offered);
  first.AskAhead(0);
  second = std::move(first);
  EXPECT_FALSE(first.active());  // NOLINT(bugprone-use-after-move): it lets go
  EXPECT_TRUE(second.active());
  EXPECT_FALSE(tier_->HasReadRoom());
  EXPECT_EQ(second.TokensBeforeRead(0), 0u);
  second = KvLoad();
  EXPECT_EQ(second.TokensBeforeRead(0), std::numeric_limits<uint32_t>::max());
  while (!tier_->HasReadRoom()) {  // a read under way ends first
  }
  EXPECT_EQ(cache().counters().reused_disk, 0u);
}

}  // namespace
}  // namespace kvasir
