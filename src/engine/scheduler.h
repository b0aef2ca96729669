// Scheduler: which rows the next step computes, and what becomes of them.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "cache/kv_cache.h"
#include "engine/sampler.h"
#include "engine/sequence.h"
#include "import/file_watch.h"
#include "kvasir/engine.h"
#include "model/runner.h"

namespace kvasir {

struct SchedulerOptions {
  CacheMode cache_mode = CacheMode::kPrefix;
  uint32_t parallel = 8;
  uint32_t max_rows = 512;   // of a step: what the runner was made for; at least parallel
  uint32_t logit_rows = 16;  // of one call to Runner::Logits
  Identity identity{};
  std::vector<TokenId> end_tokens;  // ascending
  const Tokenizer* tokenizer = nullptr;
  FileWatch* files = nullptr;  // what the runner reads; must outlive the scheduler
};

// Runs requests: FIFO admission by what a request takes at most (the head waits, nobody overtakes),
// then steps of one token for every generating sequence and chunks of prompts, max_rows in all. A
// running sequence always finds the blocks it still needs: its request has reserved them
// (cache/reservation.h). A request leaves with all its blocks given back, before its last event
// is told. Sinks are called at the end of a step. Where a file of the model was changed all
// requests end with kModelChanged: this is looked at before requests are admitted, before what a
// step computed is committed, and before its logits are used. Runner and cache must outlive it.
// Engine thread only.
class Scheduler {
 public:
  Scheduler(Runner& runner, KvCache& cache, SchedulerOptions options);
  // What the constructor allocates for logits and sampling, exactly; and what it did allocate.
  static uint64_t ScratchBytes(uint32_t vocab_size, uint32_t logit_rows, uint32_t threads,
                               uint32_t parallel);
  uint64_t scratch_bytes() const;

  // REQUIRES: the request's demand fits the empty pool, its n is at
  // most `parallel`. Where this throws the request stays the caller's.
  void Enqueue(std::unique_ptr<Request>&& request);
  void Cancel(RequestId id);
  void CancelAll();
  // All requests end with this error: after Step threw, or where a file of the model was changed.
  // May be called again when it throws.
  void FailAll(const Error& error);
  // Forgets at once; the steps that follow zero the blocks, and the last of them calls `done`.
  // Where this throws, `done` stays the caller's.
  void Erase(std::string_view tenant, ErasureSink&& done);

  bool idle() const {
    return waiting_.empty() && running_.empty() && ended_.empty() && erasures_.empty();
  }
  // Requests that got their last event, and the sum of their bytes; erasures that are done.
  struct Ended {
    uint32_t count = 0;
    uint64_t bytes = 0;
    uint32_t num_erased = 0;
  };
  // One step, then tells the sinks. With nothing to run it only tells the news (of cancelled
  // requests) and zeroes what was erased.
  Ended Step();
  // Called at once, then before the sinks of each step: what they see is in the snapshot already.
  void set_on_stats(std::function<void(const EngineStats&)> on_stats) {
    on_stats_ = std::move(on_stats);
    PublishStats();
  }
  void CheckInvariants() const;

 private:
  struct Rows {  // of one sequence in this step; none when a Cursor answers
    Request* request;
    Sequence* sequence;
    uint32_t first_row, num_rows;
    uint32_t position;  // of the first row
  };
  struct Head {  // a row whose logits are wanted
    Request* request;
    Sequence* sequence;
    const float* hidden;  // [hidden_size]
    uint32_t position;
    bool sample;  // the last row of what is known of the sequence
  };
  struct Draw {  // of the next token of a choice
    const Head* head;
    Sequence* sequence;
    std::span<const float> logits;
    std::optional<TokenId> id;  // none: a logit is not finite
    GeneratedToken token;       // its logprobs, if they are asked for
  };

  // scheduler_admission.cc
  void CheckFiles();
  void CheckStepFiles();  // those that steps read
  void Admit();
  bool TryAdmit(Request& request);
  void AddSequence(Request& request, KvSequence kv);
  void ExplainMatch(Request& request, const MatchResult& match);

  // scheduler.cc
  void PlanRows();
  void ExtendRows();
  void ComputeRows();
  void CommitRows();
  void StartChoices(Request& request, const float* hidden);
  void AddHeads(const Rows& rows);
  void ComputeHeads();
  void TellLogits(const Head& head, std::span<const float> logits);
  void AddDraws(const Head& head, std::span<const float> logits);
  void RunDraws();
  void RunDraw(Draw& draw, Sampler& sampler);

  // scheduler_news.cc
  void UseDraw(Draw& draw);
  void EndSequence(Request& request, Sequence& sequence, const float* hidden, FinishReason reason);
  void EndRequest(Request& request, FinishReason reason, const Error* error);
  void FinishRequest(Request& request, FinishReason reason);
  void CollectEnded();
  Ended Deliver();
  void ZeroErased(uint64_t step_ns);
  uint32_t TellErasures();
  void CountStep(uint64_t step_ns);
  void PublishStats();

  // Calls the cache and counts the time inside it.
  template <typename F>
  auto TimedCache(F&& call) {
    struct Timer {
      uint64_t& sum_ns;
      uint64_t start_ns = MonotonicNs();
      ~Timer() { sum_ns += MonotonicNs() - start_ns; }
    } timer{stats_.cache_ns};
    return call();
  }

  Runner& runner_;
  KvCache& cache_;
  const SchedulerOptions options_;
  std::vector<Sampler> samplers_;  // each used by one thread at a time
  std::vector<float> logits_;      // [logit_rows][vocab]
  std::function<void(const EngineStats&)> on_stats_;

  std::deque<std::unique_ptr<Request>> waiting_;
  std::vector<std::unique_ptr<Request>> running_;  // in order of admission
  std::vector<std::unique_ptr<Request>> ended_;    // their last events are not told yet
  bool retry_admission_ = true;  // blocks came back since the head was last refused
  struct Erasing {
    uint64_t point;  // of KvCache::Forget
    Erasure erasure;
    ErasureSink done;
  };
  std::deque<Erasing> erasures_;

  // Of the current step; kept for their capacity.
  std::vector<Rows> rows_;
  std::vector<Head> heads_;
  std::vector<StepSequence> step_;
  std::vector<TokenId> step_tokens_;
  std::vector<const float*> head_hidden_;
  std::vector<float*> head_logits_;
  std::vector<Draw> draws_;
  std::atomic<uint32_t> next_draw_{0};  // relaxed: who runs a draw does not matter
  uint32_t decode_rows_ = 0;

  uint64_t files_checked_ns_ = 0;  // all of them, with their paths

  EngineStats stats_;
  double prefill_ns_ = 0, prefill_rows_ = 0;  // decaying sums: the measured prefill speed
};

}  // namespace kvasir
