// SchedulerProcess: an engine without its thread, for tests of a scheduler on a tier.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/random.h"
#include "schedule/request_check.h"
#include "schedule/request_limits_for_test.h"
#include "schedule/scheduler.h"
#include "testing/fake_runner.h"

namespace kvasir {

inline constexpr uint32_t kProcessBlock = 16, kProcessRows = 64, kProcessVocab = 64;

inline std::vector<TokenId> RandomPrompt(uint64_t seed, uint32_t tokens) {
  Random random(Mix64(seed));  // seeds side by side give texts that have nothing in common
  std::vector<TokenId> prompt(tokens);
  for (TokenId& token : prompt) token = static_cast<TokenId>(random.Below(kProcessVocab));
  return prompt;
}

inline std::vector<TokenId> Joined(std::vector<TokenId> tokens, const std::vector<TokenId>& more) {
  tokens.insert(tokens.end(), more.begin(), more.end());
  return tokens;
}

struct ProcessOptions {
  Tier* tier = nullptr;  // outlives the process
  std::vector<uint32_t> windows = {0};
  uint32_t max_blocks = 4096, context = 4096, parallel = 4;
  Admission admission = Admission::kExpected;
  std::chrono::milliseconds tier_answer = std::chrono::milliseconds(60'000);
  std::function<void()> on_step = [] {};
};

class SchedulerProcess {
 public:
  explicit SchedulerProcess(const ProcessOptions& options)
      : options_(options),
        runner_({.vocab_size = kProcessVocab,
                 .max_positions = options.context,
                 .block_tokens = kProcessBlock,
                 .max_rows = kProcessRows,
                 .windows = options.windows,
                 .on_step = options.on_step}),
        cache_(*KvCache::Create({.layout = runner_.layout(),
                                 .budget_bytes = 64 << 20,
                                 .hidden_size = FakeRunner::kHidden,
                                 .max_blocks = options.max_blocks,
                                 .secret = {},
                                 .step_tokens = kProcessRows,
                                 .tier = options.tier})),
        scheduler_(
            runner_, *cache_,
            {.admission = options.admission,
             .kv_headroom = 0,
             .parallel = options.parallel,
             .max_rows = kProcessRows,
             .tier = options.tier,
             .tier_answer_ns = static_cast<uint64_t>(options.tier_answer.count()) * 1'000'000,
             .end_tokens = {}}) {
    scheduler_.set_on_stats([this](const EngineStats& stats) { stats_ = stats; });
    if (options.tier == nullptr) return;
    options.tier->set_on_progress([this] {
      const MutexLock lock(mutex_);
      progress_ = true;
      told_.notify_all();
    });
  }
  ~SchedulerProcess() {
    if (options_.tier != nullptr) options_.tier->set_on_progress([] {});
  }

  struct Answer {
    std::vector<TokenId> tokens;
    Receipt receipt;
    bool is_done = false;
  };
  using Change = std::function<void(GenerateRequest&)>;
  // Enqueues a prompt that gets one token, unless `change` says otherwise. `answer` outlives it.
  RequestId Enqueue(const std::vector<TokenId>& prompt, Answer* answer, const Change& change = {}) {
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
          for (const auto& token : event.tokens) answer->tokens.push_back(token.id);
          if (event.last) answer->receipt = event.receipt;
          answer->is_done |= event.last;
        },
        LimitsFor(*cache_, options_.context, kProcessVocab, options_.parallel));
    EXPECT_TRUE(request);
    const RequestId id{++last_id_};
    (*request)->id = id;
    (*request)->times.submitted_ns = MonotonicNs();
    scheduler_.Enqueue(std::move(*request));
    return id;
  }
  Answer Ask(const std::vector<TokenId>& prompt, const Change& change = {}) {
    Answer answer;
    Enqueue(prompt, &answer, change);
    while (!answer.is_done) Step();
    EXPECT_EQ(answer.receipt.computed + answer.receipt.cached_tokens(), prompt.size());
    const bool is_exact = !answer.receipt.spans && !answer.receipt.retention;
    if (is_exact) {
      EXPECT_EQ(answer.tokens[0], runner_.NextToken(prompt));
    }
    return answer;
  }
  // Hands all blocks over, and waits for the answer.
  Result<TierFlushed> Store() {
    std::optional<Result<TierFlushed>> answer;
    scheduler_.Flush([&](const Result<TierFlushed>& flushed) { answer = flushed; });
    while (!answer) Step();
    return *answer;
  }
  Erasure Erase() {
    std::optional<Erasure> answer;
    scheduler_.Erase("default", [&](const Erasure& erasure) { answer = erasure; });
    while (!answer) Step();
    return *answer;
  }
  Erasure Forget(const std::vector<TokenId>& prompt, uint32_t first) {
    std::optional<Erasure> answer;
    scheduler_.Forget(
        {.owner = "default", .cache_salt = {}, .ids = prompt, .first = first, .last = first},
        std::make_shared<const KeptPrompts>(), [&](const Erasure& erasure) { answer = erasure; });
    while (!answer) Step();
    return *answer;
  }

  void Step() {
    scheduler_.Step();
    scheduler_.CheckInvariants();
    if (!scheduler_.WaitsForTier()) return;
    waited_ = true;
    MutexLock lock(mutex_);
    if (!progress_) lock.WaitFor(told_, std::chrono::milliseconds(5));
    progress_ = false;
  }
  const EngineStats& stats() const { return stats_; }  // after the last step
  bool waited() const { return waited_; }
  Scheduler& scheduler() { return scheduler_; }
  KvCache& cache() { return *cache_; }

 private:
  const ProcessOptions options_;
  FakeRunner runner_;
  std::unique_ptr<KvCache> cache_;
  Scheduler scheduler_;
  EngineStats stats_;
  Mutex mutex_;
  std::condition_variable told_;
  bool progress_ KV_GUARDED_BY(mutex_) = false;
  bool waited_ = false;
  uint64_t last_id_ = 0;
};

}  // namespace kvasir
