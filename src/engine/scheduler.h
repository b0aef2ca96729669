// Scheduler: chooses the rows of each step, runs the step and uses its results.
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

// RoPE longrope: sequences of more than `after_tokens` tokens are rotated by the long factors, and
// their KV has a separate Identity.
struct LongRope {
  uint32_t after_tokens;
  Identity identity;
};

struct SchedulerOptions {
  CacheMode cache_mode = CacheMode::kPrefix;
  uint32_t parallel = 8;
  uint32_t max_rows = 512;   // of a step: the runner's max_rows; at least parallel
  uint32_t logit_rows = 16;  // of one call to Runner::Logits
  Identity identity{};
  std::optional<LongRope> long_rope;  // absent: the length does not change the rotation
  std::vector<TokenId> end_tokens;    // ascending
  const Tokenizer* tokenizer = nullptr;
  FileWatch* files = nullptr;  // what the runner reads; must outlive the scheduler
};

// Runs requests. Admission is first in, first out, by the most blocks that a request can need: the
// first one waits until they can be reserved, and no other overtakes it. Each step computes one
// token of each generating sequence and chunks of prompts, max_rows in all. A running sequence
// always finds the blocks that it needs, because its request has reserved them
// (cache/reservation.h). With long_rope, a sequence whose next token makes it longer than
// after_tokens restarts: it gives back its blocks, and all its tokens are computed (or found) again
// under the other Identity. A request returns all its blocks before its last event is sent. Sinks
// are called at the end of a step. When a file of the model was changed, all requests end with
// kModelChanged: the scheduler checks this before it admits requests, before it commits what a step
// computed, and before it uses the step's logits. Runner and cache must outlive it. Engine thread
// only.
class Scheduler {
 public:
  Scheduler(Runner& runner, KvCache& cache, SchedulerOptions options);
  // The exact bytes that the constructor will allocate for logits and sampling, and those that it
  // did allocate.
  static uint64_t ScratchBytes(uint32_t vocab_size, uint32_t logit_rows, uint32_t threads,
                               uint32_t parallel);
  uint64_t scratch_bytes() const;

  // REQUIRES: the request's demand fits the empty pool; its n is at most `parallel`. If this
  // throws, the caller still owns the request.
  void Enqueue(std::unique_ptr<Request>&& request);
  void Cancel(RequestId id);
  void CancelAll();
  // Ends all requests with this error: after Step threw, or when a file of the model was changed.
  // If it throws, it may be called again.
  void FailAll(const Error& error);
  // Forgets the tenant's namespaces at once. The next steps zero the blocks, and the last of these
  // steps calls `done`. If this throws, the caller still owns `done`.
  void Erase(std::string_view tenant, ErasureSink&& done);

  bool idle() const {
    return waiting_.empty() && running_.empty() && ended_.empty() && erasures_.empty();
  }
  // Requests that got their last event, the sum of their bytes, and erasures that are complete.
  struct Ended {
    uint32_t count = 0;
    uint64_t bytes = 0;
    uint32_t num_erased = 0;
  };
  // Runs one step, then calls the sinks. With nothing to run it only sends waiting events (of
  // cancelled requests) and zeroes erased blocks.
  Ended Step();
  // on_stats is called at once, and then in each step before its sinks, so that the snapshot
  // already counts what they get.
  void set_on_stats(std::function<void(const EngineStats&)> on_stats) {
    on_stats_ = std::move(on_stats);
    PublishStats();
  }
  void CheckInvariants() const;

 private:
  struct Rows {  // of one sequence in this step; no rows when a Cursor answers
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
    std::optional<TokenId> id;  // absent: a logit is not finite
    GeneratedToken token;       // its logprobs, if they are asked for
  };

  // scheduler_admission.cc
  void CheckFiles();
  void CheckStepFiles();  // only those that steps read
  void Admit();
  bool TryAdmit(Request& request);
  bool IsLong(size_t tokens) const {
    return options_.long_rope && tokens > options_.long_rope->after_tokens;
  }
  MatchResult Match(const Request& request, std::span<const TokenId> tokens, MatchOptions options);
  void AddSequence(Request& request, KvSequence kv);
  void ExplainMatch(Request& request, const MatchResult& match);

  // scheduler_restart.cc
  bool AwaitsRestart(const Sequence& sequence) const {
    return !sequence.done && !sequence.long_rope && IsLong(sequence.tokens.size());
  }
  void RestartSequences();
  void Restart(Request& request, Sequence& sequence);
  void ReleaseRestart(Request& request, Sequence& sequence);

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
  std::vector<std::unique_ptr<Request>> ended_;    // their last events are not sent yet
  bool retry_admission_ = true;  // blocks were released since the first one was refused
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

  uint64_t files_checked_ns_ = 0;  // the last CheckAll

  EngineStats stats_;
  double prefill_ns_ = 0, prefill_rows_ = 0;  // decaying sums: the measured prefill speed
};

}  // namespace kvasir
