// A prompt is looked for in a store that is far away before it is computed.
#include "schedule/tier_looks.h"

#include <gtest/gtest.h>

#include <chrono>

#include "schedule/scheduler_process_for_test.h"
#include "tier/far_tier_for_test.h"

namespace kvasir {
namespace {

using std::chrono::milliseconds;

FarTierOptions FarOptions() {
  FarTierOptions options;
  options.memory.payload_bytes =
      FakeRunner({.block_tokens = kProcessBlock, .max_rows = kProcessRows}).layout().block_bytes();
  options.memory.num_buffers = 128;
  return options;
}

TEST(TierLooks, APromptIsFoundThatOnlyTheStoreHas) {
  for (const std::vector<uint32_t>& windows : {std::vector<uint32_t>{0}, {0, 40}}) {
    FarTier tier(FarOptions());
    const auto prompt = RandomPrompt(1, 400);
    {
      SchedulerProcess first({.tier = &tier, .windows = windows});
      EXPECT_EQ(first.Ask(prompt).receipt.computed, 400u);
      first.Store();
    }
    SchedulerProcess second({.tier = &tier, .windows = windows});
    const uint32_t before = tier.num_looks();
    const Receipt receipt = second.Ask(prompt).receipt;
    EXPECT_EQ(tier.num_looks(), before + 1);
    EXPECT_EQ(receipt.reused_remote, 384u);
    EXPECT_EQ(receipt.reused_disk, 0u);
    second.Ask(prompt);  // the pool has it
    EXPECT_EQ(tier.num_looks(), before + 1);
  }
}

// The prompt's own chain says nothing of them: they come in another order, after other words.
TEST(TierLooks, SpansAreFoundThatOnlyTheStoreHas) {
  FarTier tier(FarOptions());
  const auto words = Joined({1}, RandomPrompt(20, 39)),
             other_words = Joined({1}, RandomPrompt(21, 32));
  const auto one = RandomPrompt(22, 80), two = RandomPrompt(23, 101);
  const auto prompt = Joined(Joined(words, one), Joined(two, {1, 2, 3}));
  const auto turned = Joined(Joined(other_words, two), Joined(one, {4, 5, 6}));
  const auto spans = [](std::vector<PromptSpan> spans) {
    return [spans = std::move(spans)](GenerateRequest& spec) {
      spec.spans = PromptSpans{.spans = spans, .seam = 8, .head = 1};
    };
  };
  {
    SchedulerProcess first({.tier = &tier});
    EXPECT_EQ(first.Ask(prompt, spans({{40, 120}, {120, 221}})).receipt.cached_tokens(), 0u);
    first.Store();
  }
  SchedulerProcess second({.tier = &tier});
  const auto ask = spans({{33, 134}, {134, 214}});
  const uint32_t before = tier.num_looks();
  const Receipt receipt = second.Ask(turned, ask).receipt;
  EXPECT_EQ(tier.num_looks(), before + 1);
  EXPECT_EQ(receipt.reused_remote, 96u - 9 + 80 - 9) << "less the start token and the seam";
  EXPECT_EQ(receipt.spans->reused_tokens, receipt.reused_remote);
  EXPECT_EQ(second.Ask(turned, ask).receipt.reused_remote, 0u) << "the pool has them";
  EXPECT_EQ(tier.num_looks(), before + 1);
}

// Beyond its exact tokens a prompt takes nothing.
TEST(TierLooks, OnlyWhatIsExactIsLookedFor) {
  FarTier tier(FarOptions());
  const auto prompt = RandomPrompt(24, 400);
  const auto bounded = [](uint32_t exact) {
    return [exact](GenerateRequest& spec) {
      spec.retention =
          RetentionChoice{.policy = Retention::kWindow, .budget = 16, .exact_tokens = exact};
    };
  };
  {
    SchedulerProcess first({.tier = &tier});
    first.Ask(prompt);
    first.Store();
  }
  SchedulerProcess second({.tier = &tier});
  const uint32_t before = tier.num_looks();
  second.Ask(prompt, bounded(20));
  EXPECT_EQ(tier.num_looks(), before) << "one block: nothing to ask";
  const Receipt receipt = second.Ask(prompt, bounded(100)).receipt;
  EXPECT_EQ(tier.num_looks(), before + 1);
  EXPECT_EQ(receipt.reused_remote + receipt.reused_pool, 96u);
}

TEST(TierLooks, WhoOptsOutNeitherReadsNorWrites) {
  FarTier tier(FarOptions());
  const auto prompt = RandomPrompt(2, 300);
  const auto opts_out = [](GenerateRequest& spec) { spec.use_remote = RemoteUse::kNone; };
  const auto reads = [](GenerateRequest& spec) { spec.use_remote = RemoteUse::kRead; };
  {
    SchedulerProcess first({.tier = &tier});
    first.Ask(prompt, opts_out);
    first.Ask(RandomPrompt(3, 300), reads);
    first.Store();
    EXPECT_EQ(tier.Stats().blocks, 0u);
  }
  {
    SchedulerProcess second({.tier = &tier});
    second.Ask(prompt);
    second.Store();
  }
  SchedulerProcess third({.tier = &tier});
  EXPECT_EQ(third.Ask(prompt, opts_out).receipt.reused_remote, 0u);
  SchedulerProcess fourth({.tier = &tier});
  EXPECT_EQ(fourth.Ask(prompt, reads).receipt.reused_remote, 288u);
}

TEST(TierLooks, AnAnswerThatDoesNotComeIsNotWaitedFor) {
  FarTierOptions options = FarOptions();
  options.answers_after = milliseconds(1500);
  FarTier tier(options);
  SchedulerProcess process({.tier = &tier});
  const Receipt receipt = process.Ask(RandomPrompt(4, 300)).receipt;
  EXPECT_EQ(receipt.computed, 300u);
  EXPECT_LT(receipt.ttft_ms, 1000) << "40 ms, and what this machine is late";
}

TEST(TierLooks, AStoreThatUsuallyTakesLongerIsNotAsked) {
  FarTierOptions options = FarOptions();
  options.usually_after = milliseconds(5000);
  FarTier tier(options);
  SchedulerProcess process({.tier = &tier});
  process.Ask(RandomPrompt(5, 300));
  EXPECT_EQ(tier.num_looks(), 0u);
}

TEST(TierLooks, WhatSpareTimeReadsIsNotLookedFor) {
  FarTier tier(FarOptions());
  SchedulerProcess process({.tier = &tier});
  const auto when_idle = [](GenerateRequest& spec) { spec.only_when_idle = true; };
  EXPECT_EQ(process.Ask(RandomPrompt(30, 300), when_idle).receipt.computed, 300u);
  EXPECT_EQ(tier.num_looks(), 0u);
}

TEST(TierLooks, WhoFollowsAnotherOneDoesNotAsk) {
  FarTier tier(FarOptions());
  SchedulerProcess process({.tier = &tier});
  const auto prompt = RandomPrompt(31, 400);
  SchedulerProcess::Answer leads, follows;
  process.Enqueue(prompt, &leads);
  process.Step();
  EXPECT_EQ(tier.num_looks(), 1u);
  ASSERT_FALSE(leads.is_done) << "it takes several steps";
  process.Enqueue(Joined(prompt, RandomPrompt(32, 100)), &follows);
  while (!follows.is_done) process.Step();
  EXPECT_EQ(follows.receipt.reused_pool, 400u);
  EXPECT_EQ(tier.num_looks(), 1u);
}

TEST(TierLooks, WhoGoesOnAfterAPreemptionDoesNotAsk) {
  FarTier tier(FarOptions());
  SchedulerProcess process({.tier = &tier, .max_blocks = 24});
  for (uint64_t i = 0; i < 40; ++i) process.Ask(RandomPrompt(40 + i, 20));  // answers are short
  EXPECT_EQ(tier.num_looks(), 0u);
  const auto answers = [](GenerateRequest& spec) { spec.max_tokens = 200; };
  SchedulerProcess::Answer one, two;
  process.Enqueue(RandomPrompt(33, 150), &one, answers);
  process.Enqueue(RandomPrompt(34, 150), &two, answers);
  while (!one.is_done || !two.is_done) process.Step();
  EXPECT_GT(one.receipt.preemptions + two.receipt.preemptions, 0u);
  EXPECT_EQ(tier.num_looks(), 2u);
}

TEST(TierLooks, OthersPassARequestThatIsHeld) {
  FarTierOptions options = FarOptions();
  options.answers_after = milliseconds(1000);
  FarTier tier(options);
  SchedulerProcess process({.tier = &tier});
  SchedulerProcess::Answer held, other;
  process.Enqueue(RandomPrompt(6, 300), &held);
  process.Enqueue(RandomPrompt(7, 20), &other);  // one block: nothing to ask
  process.Step();
  process.Step();
  EXPECT_TRUE(other.is_done);
  EXPECT_FALSE(held.is_done);
  while (!held.is_done) process.Step();
  EXPECT_TRUE(process.waited()) << "it does not spin";
  EXPECT_EQ(tier.num_looks(), 1u);
}

// What a request waits for others after the answer does not count as its load's delay.
TEST(TierLooks, ARequestIsHeldUntilTheAnswer) {
  LookState look{
      .answered_ns = std::make_shared<std::atomic<uint64_t>>(0), .since_ns = 100, .until_ns = 400};
  EXPECT_EQ(look.HeldNs(250), 150u) << "no answer yet";
  EXPECT_EQ(look.HeldNs(9000), 300u);
  look.answered_ns->store(180);
  EXPECT_EQ(look.HeldNs(250), 80u);
  EXPECT_EQ(look.HeldNs(9000), 80u);
  look.answered_ns->store(700);
  EXPECT_EQ(look.HeldNs(9000), 300u);
}

}  // namespace
}  // namespace kvasir
