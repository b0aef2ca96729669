// Marks: beginnings of prompts that idle longer than others.
#include <gtest/gtest.h>

#include <chrono>

#include "base/own_clock.h"
#include "cache/cache_driver_for_test.h"

namespace kvasir {
namespace {

class KvCacheKeepTest : public KvCacheTest {
 protected:
  void SetUp() override { MakeWith(16, TinyLayout()); }
  void MakeWith(uint32_t blocks, const KvLayout& layout) {
    Make(blocks, layout);
    ns_ = cache().EnterNamespace("alice", IdentityNamed(1));
  }
  // Runs and marks a prompt. Returns how many tokens are kept.
  uint32_t Kept(const Tokens& prompt, uint32_t tokens, uint32_t ttl_s) {
    const KvSequence sequence = Run(prompt);
    return cache().Keep(sequence, tokens, ttl_s);
  }
  // Takes the place of all that is idle and unmarked.
  void Flood(uint32_t blocks = 12) {
    for (uint32_t i = 0; i < blocks; ++i) Run(TokensFrom(++next_, 16));
  }

  OwnClock clock_;
  uint32_t next_ = 100;
};

TEST_F(KvCacheKeepTest, AMarkedBeginningStaysBesideOthersThatCome) {
  const Tokens prompt = TokensFrom(1, 60), other = TokensFrom(2, 60);
  Run(other);
  EXPECT_EQ(Kept(prompt, 40, 300), 32u);
  Flood(40);
  Run(prompt);
  EXPECT_EQ(reused(), 32u) << "the whole blocks before the mark";
  Run(other);
  EXPECT_EQ(reused(), 0u);
  cache().CheckInvariants();
}

TEST_F(KvCacheKeepTest, UntilItsTimeIsOverWhichAHitRenews) {
  const Tokens prompt = TokensFrom(1, 48);
  EXPECT_EQ(Kept(prompt, 32, 300), 32u);
  clock_.Advance(std::chrono::seconds(299));
  Run(prompt);
  clock_.Advance(std::chrono::seconds(299));
  Flood(40);
  Run(prompt);
  EXPECT_EQ(reused(), 32u);
  clock_.Advance(std::chrono::seconds(300));
  Flood(40);
  Run(prompt);
  EXPECT_EQ(reused(), 0u);
}

TEST_F(KvCacheKeepTest, IsAnOrderAndNoReservation) {
  const Tokens prompt = TokensFrom(1, 64);
  EXPECT_EQ(Kept(prompt, 64, 300), 64u);
  const KvSequence all = Run(TokensFrom(2, 16 * 16));  // needs each block of the pool
  EXPECT_EQ(all.num_committed(), 256u);
  cache().CheckInvariants();
}

TEST_F(KvCacheKeepTest, AnAccountKeepsAQuarterOfThePoolAtMost) {
  EXPECT_EQ(Kept(TokensFrom(1, 80), 80, 300), 0u) << "5 of 16 blocks";
  const Tokens first = TokensFrom(2, 32), second = TokensFrom(3, 32), third = TokensFrom(4, 32);
  EXPECT_EQ(Kept(first, 32, 300), 32u);
  clock_.Advance(std::chrono::seconds(1));
  EXPECT_EQ(Kept(second, 32, 300), 32u);
  clock_.Advance(std::chrono::seconds(1));
  EXPECT_EQ(Kept(third, 32, 300), 32u);
  Flood(40);
  Run(second);
  EXPECT_EQ(reused(), 32u);
  Run(third);
  EXPECT_EQ(reused(), 32u);
  Run(first);
  EXPECT_EQ(reused(), 0u) << "the oldest mark ended";
}

TEST_F(KvCacheKeepTest, WhatIsNotPublishedIsNotKept) {
  EXPECT_EQ(Kept(TokensFrom(1, 40), 15, 300), 0u) << "no whole block";
  MatchOptions options;
  options.reuse = false;
  const KvSequence sequence = Run(TokensFrom(1, 40), options);
  EXPECT_EQ(cache().Keep(sequence, 40, 300), 0u);
}

TEST_F(KvCacheKeepTest, AnEraseTakesThem) {
  const Tokens prompt = TokensFrom(1, 48);
  EXPECT_EQ(Kept(prompt, 32, 300), 32u);
  cache().Forget(ns_);
  Run(prompt);
  EXPECT_EQ(reused(), 0u);
  cache().CheckInvariants();
}

TEST_F(KvCacheKeepTest, WithWindowsTheMarkIsAResumePoint) {
  MakeWith(40, LayoutOf({0, 32}));
  const Tokens prompt = TokensFrom(1, 48);
  KvSequence sequence = Run(prompt);
  EXPECT_EQ(cache().Keep(sequence, 48, 300), 48u);
  sequence = KvSequence();
  Flood(40);
  Run(Join(prompt, TokensFrom(2, 4)));
  EXPECT_EQ(reused(), 48u);
  cache().CheckInvariants();
}

}  // namespace
}  // namespace kvasir
