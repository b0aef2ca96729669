// Spans of requests that wait, and what is reserved for those that run.
#include <gtest/gtest.h>

#include <thread>

#include "schedule/scheduler_process_for_test.h"
#include "tier/memory_tier_for_test.h"

namespace kvasir {
namespace {

using Answer = SchedulerProcess::Answer;

// A prompt of words, documents and a question, of which the documents are spans after the start
// token.
struct SpannedPrompt {
  std::vector<TokenId> tokens;
  std::vector<PromptSpan> spans;

  SpannedPrompt(uint64_t words, uint32_t num_words, std::vector<uint64_t> documents,
                uint32_t document_tokens)
      : tokens(Joined({1}, RandomPrompt(words, num_words))) {
    for (const uint64_t document : documents) {
      const auto begin = static_cast<uint32_t>(tokens.size());
      tokens = Joined(std::move(tokens), RandomPrompt(1000 + document, document_tokens));
      spans.push_back({begin, begin + document_tokens});
    }
    tokens = Joined(std::move(tokens), {7, 8, 9});
  }
  SchedulerProcess::Change With(uint32_t max_tokens, uint32_t chunk_tokens = 64) const {
    return [=, spans = spans](GenerateRequest& spec) {
      spec.spans = PromptSpans{.spans = spans, .seam = 8, .head = 1};
      spec.max_tokens = max_tokens;
      spec.chunk_tokens = chunk_tokens;
    };
  }
};

// Others pin what a request waits to reserve. Each of them that ends leaves too little, and says
// nothing new of the spans.
TEST(SchedulerSpans, ARequestThatWaitsLooksForItsSpansOnlyWhereTheyMayFit) {
  SchedulerProcess process({.max_blocks = 190, .parallel = 20, .admission = Admission::kFull});
  const SpannedPrompt prompt(1, 20, {0, 1, 2, 3, 4, 5, 6, 7}, 96);
  std::vector<Answer> others(16);
  for (uint32_t i = 0; i < others.size(); ++i) {
    process.Enqueue(RandomPrompt(100 + i, 100), &others[i],
                    [&](GenerateRequest& spec) { spec.max_tokens = 40 + i * 3; });
  }
  while (process.stats().running < others.size()) process.Step();
  Answer answer;
  process.Enqueue(prompt.tokens, &answer, prompt.With(1));
  uint64_t tries = 0, failed = 0;
  while (process.stats().running < others.size() + 1 && !answer.is_done) {
    process.Step();
    tries += process.stats().requests.reservations_failed > failed;
    failed = process.stats().requests.reservations_failed;
  }
  while (!answer.is_done) process.Step();
  EXPECT_GE(tries, 5u);
  // When it came, when they may have found room, and when each part began.
  EXPECT_LE(process.scheduler().num_span_matches(), 4u * 8);
  for (const Answer& other : others) {
    while (!other.is_done) process.Step();
  }
}

// It has pins on the beginnings of its spans, and blocks reserved for the rest. Its owner's cache
// is erased before it reads them; another request waits for a little more than is left.
TEST(SchedulerSpans, APartKeepsWhatWasReservedForIt) {
  SchedulerProcess process({.max_blocks = 44});
  const SpannedPrompt before(1, 20, {0, 1, 2}, 96);
  process.Ask(before.tokens, before.With(1));
  const SpannedPrompt prompt(2, 60, {2, 0, 1}, 136);
  Answer answer, other;
  process.Enqueue(prompt.tokens, &answer, prompt.With(40, 1));
  for (int i = 0; i < 10; ++i) process.Step();
  ASSERT_EQ(process.stats().running, 1u);
  ASSERT_EQ(process.scheduler().num_span_matches(), 3u + 3 + 3) << "its spans are not begun";
  process.Erase();
  const uint32_t left = process.cache().unreserved_blocks();
  process.Enqueue(RandomPrompt(5, (left + 2) * kProcessBlock), &other,
                  [](GenerateRequest& spec) { spec.chunk_tokens = 1; });
  while (!answer.is_done) {
    process.Step();
    ASSERT_TRUE(answer.is_done || process.stats().running == 1) << "it gave blocks back";
  }
  EXPECT_EQ(answer.tokens.size(), 40u);
  EXPECT_EQ(answer.receipt.preemptions, 0u);
  while (!other.is_done) process.Step();
}

// A request that matters more takes its place at any step. What it finds of its spans afterwards it
// has computed itself.
TEST(SchedulerSpans, APreemptionLosesNothingOfWhatWasComputed) {
  const SpannedPrompt prompt(3, 20, {0, 1, 2}, 60);
  uint32_t preemptions = 0;
  for (int steps = 1; steps < 260; steps += 7) {
    SchedulerProcess process({.max_blocks = 64, .parallel = 1});
    Answer answer, urgent;
    process.Enqueue(prompt.tokens, &answer, [&](GenerateRequest& spec) {
      prompt.With(5, 1)(spec);
      spec.priority = 1;
    });
    for (int i = 0; i < steps; ++i) process.Step();
    process.Enqueue(RandomPrompt(4, 30), &urgent);
    while (!answer.is_done || !urgent.is_done) process.Step();
    preemptions += answer.receipt.preemptions;
    const SpansReceipt& spans = answer.receipt.spans.value();
    EXPECT_EQ(spans.reused_tokens, 0u) << steps;
    EXPECT_EQ(spans.computed_tokens, 3u * (60 - 8)) << steps;
    EXPECT_EQ(spans.seam_tokens, 3u * 8) << steps;
    EXPECT_EQ(answer.receipt.computed, prompt.tokens.size()) << steps;
  }
  EXPECT_GT(preemptions, 20u);
}

// Each part has 6 blocks in the tier; the read of one of them takes long.
TEST(SchedulerSpans, AClientThatLeavesWhileAPartIsLoadedGivesAllBack) {
  const SpannedPrompt before(1, 20, {0, 1, 2}, 96), prompt(2, 60, {2, 0, 1}, 96);
  for (const uint64_t stalls_at : {0u, 3u, 8u}) {
    MemoryTierOptions options;
    options.payload_bytes = FakeRunner({.block_tokens = kProcessBlock, .max_rows = kProcessRows})
                                .layout()
                                .block_bytes();
    options.stalls_at = stalls_at;
    options.stall = std::chrono::milliseconds(100);
    MemoryTier tier(options);
    {
      SchedulerProcess first({.tier = &tier});
      first.Ask(before.tokens, before.With(1));
      ASSERT_TRUE(first.Store());
    }
    // Computing takes longer than reading, with a sanitizer too: so all parts are read.
    SchedulerProcess process({.tier = &tier, .on_step = [] {
                                std::this_thread::sleep_for(std::chrono::milliseconds(60));
                              }});
    Answer answer;
    const RequestId id = process.Enqueue(prompt.tokens, &answer, prompt.With(5));
    while (tier.num_reads() < stalls_at || !process.scheduler().WaitsForTier()) {
      ASSERT_FALSE(answer.is_done) << "nothing stalled at " << stalls_at;
      process.Step();
    }
    process.scheduler().Cancel(id);
    while (!answer.is_done) process.Step();
    EXPECT_TRUE(answer.tokens.empty());
    process.Step();
    EXPECT_EQ(process.stats().pinned_blocks, 0u);
    EXPECT_EQ(process.cache().unreserved_blocks(), process.cache().plan().num_blocks);
    EXPECT_EQ(process.Ask(prompt.tokens, prompt.With(5)).tokens.size(), 5u);
  }
}

}  // namespace
}  // namespace kvasir
