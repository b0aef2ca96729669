// A prompt is looked for in a store that is far away before it is computed.
#include "schedule/tier_looks.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "base/random.h"
#include "schedule/request_check.h"
#include "schedule/request_limits_for_test.h"
#include "schedule/scheduler.h"
#include "testing/fake_runner.h"
#include "tier/far_tier_for_test.h"

namespace kvasir {
namespace {

using std::chrono::milliseconds;
constexpr uint32_t kLookBlock = 16, kLookRows = 64, kLookContext = 1024, kLookVocab = 64;

std::vector<TokenId> PromptOf(uint64_t seed, uint32_t tokens) {
  Random random(seed);
  std::vector<TokenId> prompt(tokens);
  for (TokenId& token : prompt) token = static_cast<TokenId>(random.Below(kLookVocab));
  return prompt;
}

// A scheduler on a tier, which outlives it.
class LookingProcess {
 public:
  explicit LookingProcess(Tier* tier, std::vector<uint32_t> windows = {0})
      : runner_({.vocab_size = kLookVocab,
                 .max_positions = kLookContext,
                 .block_tokens = kLookBlock,
                 .max_rows = kLookRows,
                 .windows = std::move(windows)}),
        cache_(*KvCache::Create({.layout = runner_.layout(),
                                 .budget_bytes = 64 << 20,
                                 .hidden_size = FakeRunner::kHidden,
                                 .secret = {},
                                 .step_tokens = kLookRows,
                                 .tier = tier})),
        scheduler_(runner_, *cache_,
                   {.parallel = 4, .max_rows = kLookRows, .tier = tier, .end_tokens = {}}) {}

  struct Answer {
    Receipt receipt;
    bool is_done = false;
  };
  void Ask(const std::vector<TokenId>& prompt, Answer* answer,
           const std::function<void(GenerateRequest&)>& change = {}) {
    GenerateRequest spec;
    spec.prompt = prompt;
    spec.max_tokens = 1;
    spec.sampling.temperature = 0;
    spec.ignore_eos = true;
    spec.reuse = Reuse::kBlocks;
    if (change) change(spec);
    auto request = CheckRequest(
        std::move(spec),
        [answer](const Event& event) {
          if (event.last) answer->receipt = event.receipt;
          answer->is_done |= event.last;
        },
        LimitsFor(*cache_, kLookContext, kLookVocab, 4));
    EXPECT_TRUE(request);
    (*request)->id = RequestId{++last_id_};
    (*request)->times.submitted_ns = MonotonicNs();
    scheduler_.Enqueue(std::move(*request));
  }
  void Step() {
    scheduler_.Step();
    scheduler_.CheckInvariants();
    waited_ |= scheduler_.WaitsForTier();
    if (scheduler_.WaitsForTier()) std::this_thread::sleep_for(milliseconds(1));
  }
  Receipt AskOne(const std::vector<TokenId>& prompt,
                 const std::function<void(GenerateRequest&)>& change = {}) {
    Answer answer;
    Ask(prompt, &answer, change);
    while (!answer.is_done) Step();
    return answer.receipt;
  }
  void Store() {
    bool is_done = false;
    scheduler_.Flush([&](const Result<TierFlushed>&) { is_done = true; });
    while (!is_done) Step();
  }
  bool waited() const { return waited_; }

 private:
  FakeRunner runner_;
  std::unique_ptr<KvCache> cache_;
  Scheduler scheduler_;
  uint64_t last_id_ = 0;
  bool waited_ = false;
};

FarTierOptions FarOptions() {
  FarTierOptions options;
  options.memory.payload_bytes =
      FakeRunner({.block_tokens = kLookBlock, .max_rows = kLookRows}).layout().block_bytes();
  options.memory.num_buffers = 128;
  return options;
}

TEST(TierLooks, APromptIsFoundThatOnlyTheStoreHas) {
  for (const std::vector<uint32_t>& windows : {std::vector<uint32_t>{0}, {0, 40}}) {
    FarTier tier(FarOptions());
    const auto prompt = PromptOf(1, 400);
    {
      LookingProcess first(&tier, windows);
      EXPECT_EQ(first.AskOne(prompt).computed, 400u);
      first.Store();
    }
    LookingProcess second(&tier, windows);
    const uint32_t before = tier.num_looks();
    const Receipt receipt = second.AskOne(prompt);
    EXPECT_EQ(tier.num_looks(), before + 1);
    EXPECT_EQ(receipt.reused_remote, 384u);
    EXPECT_EQ(receipt.reused_disk, 0u);
    second.AskOne(prompt);  // the pool has it
    EXPECT_EQ(tier.num_looks(), before + 1);
  }
}

TEST(TierLooks, WhoOptsOutNeitherReadsNorWrites) {
  FarTier tier(FarOptions());
  const auto prompt = PromptOf(2, 300);
  const auto opts_out = [](GenerateRequest& spec) { spec.use_remote = RemoteUse::kNone; };
  const auto reads = [](GenerateRequest& spec) { spec.use_remote = RemoteUse::kRead; };
  {
    LookingProcess first(&tier);
    first.AskOne(prompt, opts_out);
    first.AskOne(PromptOf(3, 300), reads);
    first.Store();
    EXPECT_EQ(tier.Stats().blocks, 0u);
  }
  {
    LookingProcess second(&tier);
    second.AskOne(prompt);
    second.Store();
  }
  LookingProcess third(&tier);
  EXPECT_EQ(third.AskOne(prompt, opts_out).reused_remote, 0u);
  LookingProcess fourth(&tier);
  EXPECT_EQ(fourth.AskOne(prompt, reads).reused_remote, 288u);
}

TEST(TierLooks, AnAnswerThatDoesNotComeIsNotWaitedFor) {
  FarTierOptions options = FarOptions();
  options.answers_after = milliseconds(1500);
  FarTier tier(options);
  LookingProcess process(&tier);
  const Receipt receipt = process.AskOne(PromptOf(4, 300));
  EXPECT_EQ(receipt.computed, 300u);
  EXPECT_LT(receipt.ttft_ms, 1000) << "40 ms, and what this machine is late";
}

TEST(TierLooks, AStoreThatUsuallyTakesLongerIsNotAsked) {
  FarTierOptions options = FarOptions();
  options.usually_after = milliseconds(5000);
  FarTier tier(options);
  LookingProcess process(&tier);
  process.AskOne(PromptOf(5, 300));
  EXPECT_EQ(tier.num_looks(), 0u);
}

TEST(TierLooks, OthersPassARequestThatIsHeld) {
  FarTierOptions options = FarOptions();
  options.answers_after = milliseconds(1000);
  FarTier tier(options);
  LookingProcess process(&tier);
  LookingProcess::Answer held, other;
  process.Ask(PromptOf(6, 300), &held);
  process.Ask(PromptOf(7, 20), &other);  // one block: nothing to ask
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
