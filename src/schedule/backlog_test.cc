#include "schedule/backlog.h"

#include <gtest/gtest.h>

namespace kvasir {
namespace {

constexpr uint64_t kNow = 1'000'000'000;
constexpr double kMs = 1e6;

// Returns a backlog whose step takes 10 ms and 1 ms for each row.
Backlog Machine() {
  Backlog backlog;
  for (int round = 0; round < 200; ++round) {
    for (const uint32_t rows : {1, 2, 4, 8, 16, 32, 64}) {
      backlog.cost.Observe({.prefill_rows = rows}, (10 + rows) * 1'000'000);
    }
  }
  backlog.tenants = {{.name = ""}, {.name = "a"}, {.name = "b", .weight = 3}};
  backlog.knows_decoding = true;
  backlog.max_rows = 64;
  backlog.parallel = 4;
  backlog.step_begin_ns = kNow;
  return backlog;
}

Backlog::Job PromptJob(uint32_t tenant, double new_tokens) {
  return {.tenant = tenant, .new_tokens = new_tokens, .answer_tokens = 40};
}

Backlog::Job AnswerJob(uint32_t tenant, double tokens) {
  return {.tenant = tenant, .answer_tokens = tokens, .ends_there = true};
}

WaitEstimate Estimate(const Backlog& backlog, const Backlog::Job& job, double after_ms = 0) {
  return EstimateWait(backlog, {&job, 1}, kNow + static_cast<uint64_t>(after_ms * kMs));
}

void ExpectMs(double ns, double ms) { EXPECT_NEAR(ns / kMs, ms, 0.02 * ms + 0.01); }

TEST(Backlog, AnIdleEngineComputesThePromptAtOnce) {
  const WaitEstimate estimate = Estimate(Machine(), PromptJob(1, 64), 500);
  EXPECT_EQ(estimate.start_ns, 0);
  ExpectMs(estimate.first_token_ns, 74);
  ExpectMs(estimate.end_ns, 74 + 40 * 14);
  EXPECT_FALSE(estimate.knows_end);
  EXPECT_TRUE(Estimate(Machine(), AnswerJob(1, 1)).knows_end);
  ExpectMs(Estimate(Machine(), PromptJob(1, 200)).first_token_ns, 3 * 74 + 18);
}

TEST(Backlog, TheStepThatRunsEndsFirst) {
  Backlog busy = Machine();
  busy.running = {PromptJob(1, 64)};
  ExpectMs(Estimate(busy, PromptJob(1, 0.6), 70).start_ns, 4);
  // It takes longer than was expected.
  EXPECT_EQ(Estimate(busy, PromptJob(1, 30), 200).start_ns, 0);
}

TEST(Backlog, RowsThatDecodeTakeTheirTime) {
  Backlog busy = Machine();
  busy.running = {AnswerJob(1, 1000), AnswerJob(1, 1000)};
  busy.target_step_ns = 30 * kMs;
  // A step of 12 ms ends, then chunks of 18 rows.
  ExpectMs(Estimate(busy, PromptJob(1, 36)).first_token_ns, 12 + 2 * 30);
}

TEST(Backlog, AFullEngineStartsTheNextOneWhenAnAnswerEnds) {
  Backlog full = Machine();
  full.running = {AnswerJob(1, 100), AnswerJob(1, 20), AnswerJob(1, 30), AnswerJob(1, 40)};
  ExpectMs(Estimate(full, PromptJob(1, 1)).start_ns, 20 * 14);
  full.waiting = {AnswerJob(1, 50)};
  ExpectMs(Estimate(full, PromptJob(1, 1)).start_ns, 30 * 14);
}

TEST(Backlog, OfAnswersOfUnknownLengthOneEndsLongBeforeTheMean) {
  Backlog full = Machine();
  full.running.assign(4, PromptJob(1, 0));
  ExpectMs(Estimate(full, PromptJob(1, 1)).start_ns, 10 * 14);
  EXPECT_NEAR(full.EndNs() / kMs, 10 * 14, 3);
}

TEST(Backlog, TenantsTakeTurnsByTheirCharges) {
  Backlog full = Machine();
  full.parallel = 1;
  full.running = {AnswerJob(1, 10)};
  full.waiting.assign(8, AnswerJob(1, 10));
  // The other tenant was charged as much as this one: it goes next, then both by their weights.
  const double own = Estimate(full, AnswerJob(1, 1)).start_ns;
  const double other = Estimate(full, AnswerJob(2, 1)).start_ns;
  ExpectMs(own, 9 * 10 * 11);
  ExpectMs(other, 10 * 11);
  full.tenants[2].charge_ns = 1e12;  // it was given more before
  ExpectMs(Estimate(full, AnswerJob(2, 1)).start_ns, 9 * 10 * 11);
}

TEST(Backlog, ATenantAtItsMaximumWaitsForItself) {
  Backlog busy = Machine();
  busy.tenants[1].max_running = 1;
  busy.running = {AnswerJob(1, 50)};
  ExpectMs(Estimate(busy, PromptJob(1, 1)).start_ns, 50 * 11);
  ExpectMs(Estimate(busy, PromptJob(2, 1)).start_ns, 11);
}

TEST(Backlog, ALongQueueGoesOnAtTheSamePace) {
  Backlog full = Machine();
  full.parallel = 1;
  full.running = {AnswerJob(1, 10)};
  full.waiting.assign(kPlayedStarts, AnswerJob(1, 10));
  full.tenants[1].waiting = 1000;
  ExpectMs(Estimate(full, AnswerJob(1, 1)).start_ns, 1001 * 10 * 11);
}

TEST(Backlog, NothingKnownIsNoWait) {
  Backlog unknown;
  unknown.tenants = {{}};
  unknown.running.assign(1, PromptJob(0, 10));
  EXPECT_EQ(Estimate(unknown, PromptJob(0, 1000)).end_ns, 0);
}

// Counts rounds and no time: a machine under load is slow at anything.
TEST(Backlog, AnEstimatePlaysOnlyTheFirstStartsOfALongQueue) {
  const auto rounds = [](size_t waiting) {
    Backlog full = Machine();
    full.parallel = 64;
    full.running.assign(64, PromptJob(1, 0));
    full.waiting.assign(waiting, PromptJob(1, 100));
    const WaitEstimate estimate = Estimate(full, PromptJob(1, 10));
    EXPECT_GT(estimate.start_ns, 0);
    return estimate.rounds;
  };
  // A round ends with an answer, or with the rows of a prompt: whole chunks, then the rest.
  EXPECT_LE(rounds(256), 3 * (64 + kPlayedStarts));
  EXPECT_EQ(rounds(2560), rounds(256));
  EXPECT_LT(rounds(8), rounds(256));
}

}  // namespace
}  // namespace kvasir
