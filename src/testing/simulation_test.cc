#include "testing/simulation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "base/random.h"

namespace kvasir {
namespace {

constexpr uint32_t kMaxTokens = 1000;

// Draws lengths like those of conversations: most are short, some are long (log-normal).
std::vector<RecordedRequest> Conversations(uint32_t count) {
  Random random(7);
  const auto draw = [&](double median, double most) {
    const double normal =
        std::sqrt(-2 * std::log(1 - random.Uniform())) * std::cos(6.2831853 * random.Uniform());
    return static_cast<uint32_t>(std::clamp(median * std::exp(normal), 1.0, most));
  };
  std::vector<RecordedRequest> recording(count);
  for (RecordedRequest& request : recording) {
    request.input_tokens = draw(300, 2000);
    request.output_tokens = draw(100, 900);
    request.block_ids.resize(4);
  }
  return recording;
}

SimulationOptions Saturated(uint32_t parallel, uint32_t num_blocks) {
  return {.scheduler = {.target_step_ns = 200'000'000, .parallel = parallel},
          .num_blocks = num_blocks,
          .concurrency = 2 * parallel};
}

TEST(Simulation, TheSameSeedGivesTheSamePlans) {
  const auto recording = Conversations(200);
  const auto run = [&](uint64_t seed) {
    const auto requests = SampleRequests(
        recording, {.count = 60, .per_s = 2, .max_tokens = kMaxTokens, .seed = seed});
    SimulationOptions options = Saturated(8, 200);
    options.concurrency = 0;
    return Simulate(requests, options);
  };
  const SimulationResult first = run(1), again = run(1), other = run(2);
  EXPECT_EQ(first.digest, again.digest);
  EXPECT_EQ(first.virtual_ns, again.virtual_ns);
  EXPECT_NE(first.digest, other.digest);
}

TEST(Simulation, AnswersEndWhereTheRecordingSays) {
  const auto recording = Conversations(50);
  const auto requests = SampleRequests(recording, {.count = 50, .max_tokens = 300});
  const auto result = Simulate(requests, Saturated(4, 400));
  ASSERT_EQ(result.answers.size(), 50u);
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(result.answers[i].tokens, std::min(requests[i].recorded.output_tokens, 300u));
    EXPECT_GT(result.answers[i].end_ns, 0u);
  }
  EXPECT_EQ(result.refusals(), 0u);
}

// One request alone: times are those of the formula.
TEST(Simulation, TimePassesByTheMachinesFormula) {
  const std::vector<SimulatedRequest> requests = {
      {.recorded = {.input_tokens = 10, .output_tokens = 3, .block_ids = {1}}, .max_tokens = 8}};
  SimulationOptions options = Saturated(1, 8);
  options.machine = {.step_ns = 1000, .row_ns = 10, .seen_ns = 1};
  const auto result = Simulate(requests, options);
  const double prefill = 1000 + 10 * 10 + 55;
  EXPECT_EQ(result.answers[0].first_token_ns, static_cast<uint64_t>(prefill));
  EXPECT_EQ(result.virtual_ns, static_cast<uint64_t>(prefill + 1000 + 10 + 11 + 1000 + 10 + 12));
  EXPECT_EQ(result.stats.decode_rows, 2u);
}

TEST(Simulation, SharedBlocksAreFound) {
  std::vector<SimulatedRequest> requests;
  for (uint32_t i = 0; i < 4; ++i) {
    requests.push_back(
        {.recorded = {.input_tokens = 1024 + i, .output_tokens = 2, .block_ids = {1, 2, 10 + i}},
         .max_tokens = 8});
  }
  const auto result = Simulate(requests, Saturated(2, 400));
  EXPECT_EQ(result.hit_tokens(), 3 * 1024u) << "all came at once, and none computed them again";
}

TEST(Simulation, DraftsPayWhereTheyAreRightAndCostNothingWhereTheyAreWrong) {
  const auto recording = Conversations(100);
  const auto requests = SampleRequests(recording, {.count = 60, .max_tokens = kMaxTokens});
  const auto run = [&](SimulatedDrafts drafts, uint32_t parallel, Speculate speculate) {
    SimulationOptions options = Saturated(parallel, 200);  // with 8 at once some are preempted
    options.scheduler.logit_rows = 32;
    options.scheduler.speculate = speculate;
    options.drafts = drafts;
    SimulationResult result = Simulate(requests, options);
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(result.answers[i].refused, result.answers[i].tokens == 0);
      if (result.answers[i].refused) continue;
      EXPECT_EQ(result.answers[i].tokens, requests[i].recorded.output_tokens)
          << static_cast<int>(drafts) << " " << parallel << " " << i;
    }
    return result;
  };
  for (const uint32_t parallel : {1u, 8u}) {
    const auto speed = [&](SimulatedDrafts drafts, Speculate speculate = Speculate::kAuto) {
      return run(drafts, parallel, speculate).tokens_per_s();
    };
    const double plain = speed(SimulatedDrafts::kNone);
    EXPECT_GT(speed(SimulatedDrafts::kRight), (parallel == 1 ? 1.8 : 1.2) * plain) << parallel;
    EXPECT_GT(speed(SimulatedDrafts::kHalfRight), 1.02 * plain) << parallel;
    EXPECT_GT(speed(SimulatedDrafts::kWrong), 0.97 * plain) << parallel;
    EXPECT_LT(speed(SimulatedDrafts::kWrong, Speculate::kAlways), 0.9 * plain) << parallel;
  }
  const auto first = run(SimulatedDrafts::kHalfRight, 8, Speculate::kAuto);
  const auto again = run(SimulatedDrafts::kHalfRight, 8, Speculate::kAuto);
  EXPECT_EQ(first.digest, again.digest);
  EXPECT_GT(first.stats.drafts.accepted, 1000u);
}

TEST(Simulation, AFullQueueRefuses) {
  SimulationOptions options = Saturated(2, 100);
  options.concurrency = 0;
  options.max_queued = 5;
  const auto requests = SampleRequests(Conversations(50), {.count = 40, .max_tokens = 10});
  const auto result = Simulate(requests, options);
  EXPECT_EQ(result.answers.size() - result.refusals(), 5u) << "all came before the first step";
}

TEST(Simulation, ExpectedAnswersFillThePool) {
  const auto recording = Conversations(300);
  const auto requests = SampleRequests(recording, {.count = 200, .max_tokens = kMaxTokens});
  const auto run = [&](Admission admission, double headroom) {
    SimulationOptions options = Saturated(16, 16 * 600 / 16 / 2);
    options.scheduler.admission = admission;
    options.scheduler.kv_headroom = headroom;
    return Simulate(requests, options);
  };
  const auto full = run(Admission::kFull, 0.05), expected = run(Admission::kExpected, 0.05);
  const auto tight = run(Admission::kExpected, 0);
  EXPECT_GT(expected.mean_decode_batch(), 1.6 * full.mean_decode_batch());
  EXPECT_GT(expected.tokens_per_s(), 1.2 * full.tokens_per_s());
  EXPECT_LT(expected.recomputed_share(), 0.05);
  EXPECT_GE(tight.preemptions(), expected.preemptions());
  EXPECT_EQ(full.preemptions(), 0u);
}

TEST(Simulation, TenantsThatAlwaysWaitGetEqualService) {
  const auto chats = SampleRequests(Conversations(300), {.count = 400, .max_tokens = kMaxTokens});
  auto prompts = SampleRequests(Conversations(300), {.count = 400, .tenant = 1, .max_tokens = 10});
  for (SimulatedRequest& request : prompts) request.recorded.output_tokens = 5;
  SimulationOptions options = Saturated(8, 8 * 600 / 16);
  options.until_ns = 120'000'000'000;
  const auto result = Simulate(Merge(chats, prompts), options);
  EXPECT_NEAR(result.service_ns[0] / result.service_ns[1], 1, 0.05);
  options.scheduler.schedule = Schedule::kFifo;
  const auto fifo = Simulate(Merge(chats, prompts), options);
  EXPECT_GT(std::abs(fifo.service_ns[0] / fifo.service_ns[1] - 1), 0.05) << "so the test can fail";
}

// A tenant that asks for a quarter of the machine, beside one that asks for as much or for 10 times
// that. Found in such a run: the second one's requests were preempted, and no request could start.
TEST(Simulation, AFloodDoesNotDelayItsNeighbourMuch) {
  const auto recording = Conversations(300);
  const SimulationOptions saturated = Saturated(8, 8 * 600 / 16);
  const auto all =
      Simulate(SampleRequests(recording, {.count = 200, .max_tokens = kMaxTokens}), saturated);
  const double capacity = 200 / (static_cast<double>(all.virtual_ns) * 1e-9);
  const auto p95_beside = [&](double load) {
    const auto quiet =
        SampleRequests(recording, {.count = 300, .per_s = capacity / 4, .max_tokens = kMaxTokens});
    const auto flood = SampleRequests(recording, {.count = static_cast<uint32_t>(1200 * load),
                                                  .per_s = capacity * load,
                                                  .tenant = 1,
                                                  .max_tokens = kMaxTokens,
                                                  .seed = 2});
    SimulationOptions options = saturated;
    options.concurrency = 0;
    options.until_ns = static_cast<uint64_t>(1200 / capacity * 1e9);
    return Simulate(Merge(quiet, flood), options).ttft_ms(0).p95;
  };
  EXPECT_LT(p95_beside(2.5), 1.5 * p95_beside(0.25));
}

// A tenant used the machine alone, then none did. The tenant that comes next, it or another one,
// has saved nothing up.
TEST(Simulation, WhoUsedAnIdleMachineOwesNothing) {
  const auto recording = Conversations(300);
  const auto flood = [&](uint32_t tenant, uint64_t arrival_ns) {
    auto requests =
        SampleRequests(recording, {.count = 100, .tenant = tenant, .max_tokens = kMaxTokens});
    for (SimulatedRequest& request : requests) request.arrival_ns = arrival_ns;
    return requests;
  };
  SimulationOptions options = Saturated(8, 8 * 600 / 16);
  options.concurrency = 0;
  const uint64_t alone_ns = Simulate(flood(0, 0), options).virtual_ns;
  ASSERT_GT(alone_ns, 60'000'000'000u);
  for (const uint32_t first : {0u, 1u}) {
    const uint64_t at_ns = alone_ns + 1'000'000'000;
    auto later = flood(1 - first, at_ns + 1'000'000'000);
    later.resize(1);
    const auto requests = Merge(Merge(flood(0, 0), flood(first, at_ns)), later);
    const auto result = Simulate(requests, options);
    EXPECT_LT(result.answers.back().first_token_ns - result.answers.back().arrival_ns,
              20'000'000'000u)
        << "tenant " << first << " came first";
  }
}

}  // namespace
}  // namespace kvasir
