// What the drafts of a request may depend on: its own tenant, never the traffic of others.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "base/clock.h"
#include "schedule/drafts_for_test.h"
#include "schedule/request_check.h"
#include "schedule/request_limits_for_test.h"
#include "schedule/scheduler.h"
#include "testing/small_runner_for_test.h"

namespace kvasir {
namespace {

// Always drafts as much as there is room for, and all of it is right.
class DraftingScheduler {
 public:
  explicit DraftingScheduler(uint32_t num_blocks)
      : runner_(SmallRunnerOptions()),
        cache_(*KvCache::Create({.layout = runner_.layout(),
                                 .budget_bytes = 1 << 24,
                                 .hidden_size = FakeRunner::kHidden,
                                 .num_cursors = 4,
                                 .max_blocks = num_blocks,
                                 .secret = {},
                                 .step_tokens = kSmallRows})),
        scheduler_(runner_, *cache_,
                   {.kv_headroom = 0,
                    .unknown_answer_tokens = 8,
                    .parallel = 4,
                    .max_rows = kSmallRows,
                    .logit_rows = kSmallRows,
                    .end_tokens = {},
                    .speculate = Speculate::kAlways,
                    .draft_max = 12,
                    .drafts = [this](const Request&, const Sequence& sequence, Draft& draft) {
                      std::vector<TokenId> tokens = sequence.tokens;
                      for (draft.num_tokens = 0; draft.num_tokens < 12; ++draft.num_tokens) {
                        tokens.push_back(runner_.NextToken(tokens));
                        draft.tokens[draft.num_tokens] = tokens.back();
                      }
                    }}) {
    scheduler_.set_on_stats([this](const EngineStats& stats) { stats_ = stats; });
  }

  // Enqueues a request; its last event is in `ended` when it has ended.
  void Begin(const char* tenant, std::vector<TokenId> prompt, uint32_t max_tokens, bool drafts,
             std::optional<Event>* ended) {
    GenerateRequest spec;
    spec.tenant = tenant;
    spec.prompt = std::move(prompt);
    spec.max_tokens = max_tokens;
    spec.ignore_eos = true;
    spec.sampling.temperature = 0;
    if (!drafts) spec.draft_max = 0;
    auto request = CheckRequest(
        std::move(spec),
        [ended](const Event& event) {
          if (event.last) *ended = event;
        },
        LimitsFor(*cache_, kSmallContext, kSmallVocab, 4));
    ASSERT_TRUE(request);
    (*request)->id = RequestId{++last_id_};
    (*request)->times.submitted_ns = MonotonicNs();
    scheduler_.Enqueue(std::move(*request));
  }
  void Step() {
    scheduler_.Step();
    scheduler_.CheckInvariants();
  }
  const EngineStats& stats() const { return stats_; }
  double ServiceNs(const char* tenant) const {
    return std::ranges::find(stats_.tenants, tenant, &TenantStats::name)->service_ns;
  }
  DraftReceipt DraftsOf(const char* tenant, TokenId first, uint32_t max_tokens) {
    std::optional<Event> ended;
    Begin(tenant, SmallPrompt(20, first), max_tokens, true, &ended);
    while (!ended) Step();
    EXPECT_EQ(ended->receipt.preemptions, 0u);
    return ended->receipt.draft;
  }

 private:
  FakeRunner runner_;
  const std::unique_ptr<KvCache> cache_;
  Scheduler scheduler_;
  EngineStats stats_;
  uint64_t last_id_ = 0;
};

uint64_t DraftedOf(const DraftReceipt& receipt) {
  return std::accumulate(receipt.drafted.begin(), receipt.drafted.end(), uint64_t{0});
}

TEST(SchedulerDrafts, DoNotShowHowLongTheAnswersOfOtherTenantsWere) {
  std::vector<DraftReceipt> receipts;
  for (const uint32_t length : {0u, 1u, 3u, 90u}) {
    DraftingScheduler drafting(256);
    // So many answers make the reservations of other tenants follow them.
    for (uint32_t i = 0; length > 0 && i <= AnswerLengths::kEnough; ++i) {
      drafting.DraftsOf("anna", static_cast<TokenId>(2 + i), length);
    }
    receipts.push_back(drafting.DraftsOf("ben", 1, 70));
  }
  for (const DraftReceipt& receipt : receipts) {
    // The prompt's step gives one token, each draft 13, and the last one what is left.
    EXPECT_EQ(receipt.steps, 6u);
    EXPECT_EQ(DraftedOf(receipt), 5u * 12 + 3);
    EXPECT_EQ(receipt.drafted, receipt.accepted);
  }
}

TEST(SchedulerDrafts, AreChargedToTheirTenantAndCountAsNoSequence) {
  DraftingScheduler drafting(256);
  std::optional<Event> anna, ben;
  drafting.Begin("anna", SmallPrompt(8, 1), 60, true, &anna);
  drafting.Begin("ben", SmallPrompt(8, 2), 60, false, &ben);
  while (drafting.stats().decode_rows < 2) drafting.Step();
  const EngineStats before = drafting.stats();
  const double of_anna = drafting.ServiceNs("anna"), of_ben = drafting.ServiceNs("ben");
  drafting.Step();
  EXPECT_EQ(drafting.stats().decode_rows - before.decode_rows, 2u);
  EXPECT_EQ(drafting.stats().prefill_rows, before.prefill_rows);
  EXPECT_EQ(drafting.stats().drafts.drafted - before.drafts.drafted, 12u);
  EXPECT_NEAR((drafting.ServiceNs("anna") - of_anna) / (drafting.ServiceNs("ben") - of_ben), 13,
              1e-6);
}

// Another tenant's prompt leaves 4 blocks to ben: his drafts end with their blocks, whatever was
// reserved for his answer.
TEST(SchedulerDrafts, EndWithABlockWhereTheCacheHasNoRoom) {
  for (const uint32_t length : {1u, 90u}) {
    DraftingScheduler drafting(17);
    for (uint32_t i = 0; i <= AnswerLengths::kEnough; ++i) {
      drafting.DraftsOf("carl", static_cast<TokenId>(2 + i), length);
    }
    std::optional<Event> anna;
    drafting.Begin("anna", SmallPrompt(200, 40), 8, false, &anna);
    for (uint32_t i = 0; i < 200 / kSmallRows + 1; ++i) drafting.Step();
    const DraftReceipt receipt = drafting.DraftsOf("ben", 1, 27);
    EXPECT_FALSE(anna) << "she kept her blocks meanwhile";
    EXPECT_EQ(receipt.steps, 2u);
    EXPECT_EQ(DraftedOf(receipt), 11u + 12) << length;
  }
}

}  // namespace
}  // namespace kvasir
