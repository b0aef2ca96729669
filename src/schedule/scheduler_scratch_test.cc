// What the steps of a real model leave in their scratch memory, attention's too: nothing after an
// erase.
#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "model/runner_for_test.h"
#include "schedule/request_check.h"
#include "schedule/request_limits_for_test.h"
#include "schedule/scheduler.h"

namespace kvasir {
namespace {

constexpr uint32_t kScratchRows = 32, kScratchParallel = 2, kScratchContext = 512;

RunnerOptions OptionsOfScratch() {
  return {.threads = 2, .max_rows = kScratchRows, .max_logit_rows = kScratchParallel};
}

// Returns the bytes of a runner's arena: its activations come first, and of them those of max_rows
// rows before the final norm.
std::span<const std::byte> ScratchOf(const Runner& runner) {
  const float* const first = runner.hidden(0).data();
  const auto stride = static_cast<uint64_t>(runner.hidden(1).data() - first);
  const uint64_t before = (kScratchRows * stride * sizeof(float) + 63) / 64 * 64;
  return {reinterpret_cast<const std::byte*>(first) - before, runner.scratch_bytes()};
}

// Marks where there are bytes other than 0.
std::vector<bool> MarksOf(const Runner& runner) {
  std::vector<bool> marks;
  for (const std::byte byte : ScratchOf(runner)) marks.push_back(byte != std::byte{0});
  return marks;
}

// Counts the marks that a new runner does not have: it has places of its parts there, and no
// numbers.
size_t NumLeft(const std::vector<bool>& marks, const std::vector<bool>& fresh) {
  size_t left = 0;
  for (size_t i = 0; i < marks.size(); ++i) left += marks[i] && !fresh[i];
  return left;
}

TEST(SchedulerScratch, NoByteOfAStepIsLeftWhenAnEraseIsTold) {
  const auto runner = MakeRunner(Import(kDemo), OptionsOfScratch());
  const std::vector<bool> fresh = MarksOf(*runner);
  const auto cache =
      *KvCache::Create({.layout = Runner::LayoutFor(runner->config(), OptionsOfScratch()),
                        .budget_bytes = 1 << 26,
                        .hidden_size = runner->config().hidden_size,
                        .num_cursors = 4,
                        .max_blocks = 64,
                        .secret = {},
                        .step_tokens = kScratchRows});
  Scheduler scheduler(*runner, *cache,
                      {.parallel = kScratchParallel, .max_rows = kScratchRows, .end_tokens = {}});
  for (uint64_t id = 1; id <= 2; ++id) {
    GenerateRequest spec;
    spec.tenant = "a";
    spec.prompt = std::vector<TokenId>(100, static_cast<TokenId>(300 + id));
    spec.max_tokens = 200;
    spec.ignore_eos = true;
    auto request = CheckRequest(
        std::move(spec), [](const Event&) {},
        LimitsFor(*cache, kScratchContext, runner->config().vocab_size, kScratchParallel));
    ASSERT_TRUE(request) << request.error().text();
    (*request)->id = RequestId{id};
    (*request)->times.submitted_ns = MonotonicNs();
    scheduler.Enqueue(std::move(*request));
  }
  // Prefill in chunks, and decode of both together.
  for (int step = 0; step < 30; ++step) scheduler.Step();
  const size_t used = NumLeft(MarksOf(*runner), fresh);
  EXPECT_GT(used, size_t{100'000}) << "a search that finds nothing before shows nothing";
  bool is_told = false;
  scheduler.Erase("a", [&](const Erasure&) {
    is_told = true;
    EXPECT_EQ(NumLeft(MarksOf(*runner), fresh), 0u);
  });
  for (int step = 0; step < 100 && !is_told; ++step) scheduler.Step();
  EXPECT_TRUE(is_told);
  scheduler.CancelAll();
  while (!scheduler.idle()) scheduler.Step();
  EXPECT_EQ(NumLeft(MarksOf(*runner), fresh), 0u) << "the requests came before the erase";
}

}  // namespace
}  // namespace kvasir
