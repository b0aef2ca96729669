// Erasures: erases and flushes of a cache that are under way, until its tier has answered too.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "cache/kv_cache.h"
#include "kvasir/engine.h"
#include "schedule/scheduler_options.h"
#include "tier/tier.h"

namespace kvasir {

// An erase forgets blocks at once. Calls of Zero zero them, a part at a time, and the tier erases
// its records meanwhile; Report calls the sink when both are done. A flush ends when the tier has
// stored all blocks that were published before it. Neither waits for the tier longer than
// tier_answer_ns. Engine thread only.
class Erasures {
 public:
  // The Identities under which the cache has KV that was computed with adapters of this digest.
  using IdentitiesOf = std::function<std::vector<Identity>(const Digest& adapters)>;

  // `tier`: the cache's; nullptr: it has none. Cache and tier must outlive this.
  // `draft`: the cache of the draft model, whose blocks are forgotten too and not counted.
  Erasures(KvCache& cache, Tier* tier, uint64_t tier_answer_ns, IdentitiesOf identities_of,
           const DraftModelParts& draft = {});

  // Begins to erase what an owner has, or a part of a prompt (Scheduler::Erase and Forget). If they
  // throw, the caller still owns `done`.
  void Erase(std::string_view owner, ErasureSink&& done);
  // Erases the same as Erase here alone, after another machine has erased it in the store of both.
  void EraseHere(const Digest& owner, ErasureSink&& done);
  void Forget(const ForgetRequest& request, const std::shared_ptr<const KeptPrompts>& kept,
              ErasureSink&& done);
  // Begins a flush. If it throws, the caller still owns `done`. REQUIRES: there is a tier.
  void Flush(FlushSink&& done);

  bool empty() const { return erasures_.empty() && flushes_.empty(); }
  // Returns whether all blocks are zeroed: the tier's answers are all that is left.
  bool AreZeroed() const;
  // Zeroes blocks for an eighth of the step's time, or a millisecond if that is more.
  void Zero(uint64_t step_ns);
  // Asks the tier to flush, where all blocks of a flush have been handed over to it.
  void FlushSealed();
  // Makes erases and flushes wait for the tier until then, at most.
  void EndTierWaits(uint64_t at_ns);

  // Calls the sinks of erases and of flushes that are done, and of those for which the tier took
  // too long. A sink that throws is called again later. ReportErased calls `before` before its
  // first sink, and returns how many sinks it called.
  uint32_t ReportErased(const std::function<void()>& before);
  void ReportFlushed();

 private:
  struct Erasing {
    uint64_t point = 0;        // of KvCache::Forget
    uint64_t draft_point = 0;  // the same of the draft model's cache
    Erasure erasure;
    // Answers of the tier that are not in `erasure` yet: one for each Identity.
    std::deque<std::future<Result<TierErased>>> tier;
    uint64_t deadline_ns = 0;
    ErasureSink done;
  };
  struct Flushing {
    KvCache::SealPoint point{};  // of KvCache::seal_point
    uint64_t deadline_ns = 0;
    std::future<Result<TierFlushed>> tier;  // not valid: not all blocks have been handed over
    std::optional<Result<TierFlushed>> answer;
    FlushSink done;
  };

  using TierErase = void (Tier::*)(const Digest&, std::function<void(Result<TierErased>)>);
  void Begin(const Digest& owner, TierErase erase, ErasureSink&& done);
  bool IsZeroed(const Erasing& erasing) const;
  void Add(Erasing erasing, ErasureSink&& done);
  bool IsDue();
  static bool TakeTierAnswers(Erasing& erasing);

  KvCache& cache_;
  Tier* const tier_;
  const uint64_t tier_answer_ns_;
  const IdentitiesOf identities_of_;
  KvCache* const draft_cache_;  // nullptr without a draft model
  const Identity draft_identity_;
  std::deque<Erasing> erasures_;
  std::deque<Flushing> flushes_;
};

}  // namespace kvasir
