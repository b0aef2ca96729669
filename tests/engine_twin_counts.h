// TwinCounts: what the runs of a twin (engine_twin.h) have compared, and what happened meanwhile.
#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>

#include "engine_scenario.h"

namespace kvasir {

struct TwinCounts {
  uint64_t rows = 0, differ = 0;  // rows of logits
  uint64_t reused_tokens = 0, evicted_blocks = 0, cancelled = 0, cursor_hits = 0;
  uint64_t window_misses = 0;  // prompts whose prefix was there, and its window not
  uint64_t disk_tokens = 0, remote_tokens = 0, restarts = 0;
  uint64_t crossed_tokens = 0;  // of remote_tokens: those that another CPU target has written
  uint64_t stalls = 0, damaged = 0, missing = 0;  // RemoteStats::fault_...
  uint64_t formats = 0, adapted = 0, kept = 0;    // requests; adapters of requests; tokens of marks
  uint64_t stopped = 0, preempted = 0;            // choices that a stop text ended; requests
  DraftStats drafts;
  uint64_t model_drafted = 0, model_accepted = 0;  // tokens of the draft model

  // Adds what an engine counts itself; called once, at its end.
  void Add(const Engine& engine) {
    const EngineStats stats = engine.Stats();
    evicted_blocks += stats.evicted_blocks;
    cursor_hits += stats.cursor_hits;
    disk_tokens += stats.reused_disk;
    remote_tokens += stats.reused_remote;
    drafts.drafted += stats.drafts.drafted;
    drafts.accepted += stats.drafts.accepted;
    if (const std::optional<RemoteStats> remote = engine.RemoteState()) {
      stalls += remote->fault_stalled;
      damaged += remote->fault_damaged;
      missing += remote->fault_missing;
    }
  }

  // Adds what an answer and its receipt say.
  void Add(const Answer& answer) {
    const Receipt& receipt = answer.receipt;
    reused_tokens += receipt.cached_tokens();
    kept += receipt.kept.value_or(0);
    preempted += receipt.preemptions > 0;
    window_misses += receipt.miss && receipt.miss->reason == MissReason::kWindow;
    cancelled += answer.choices[0].finish_reason == FinishReason::kCancelled;
    for (const auto& choice : answer.choices) stopped += choice.stop_match.has_value();
    constexpr auto kModel = static_cast<size_t>(DraftSource::kModel);
    model_drafted += receipt.draft.drafted[kModel];
    model_accepted += receipt.draft.accepted[kModel];
  }
};

inline void PrintTwin(const TwinCounts& counts) {
  const auto n = [](uint64_t number) { return static_cast<unsigned long long>(number); };
  std::printf(
      "rows %llu differ %llu (reused tokens %llu, cursor hits %llu, evicted blocks %llu, "
      "cancelled %llu, window misses %llu, from disk %llu, from a store %llu, restarts %llu, "
      "formats %llu, adapters %llu, tokens kept %llu, ended by stop texts %llu, preempted %llu, "
      "drafted tokens accepted %llu of %llu)\n",
      n(counts.rows), n(counts.differ), n(counts.reused_tokens), n(counts.cursor_hits),
      n(counts.evicted_blocks), n(counts.cancelled), n(counts.window_misses), n(counts.disk_tokens),
      n(counts.remote_tokens), n(counts.restarts), n(counts.formats), n(counts.adapted),
      n(counts.kept), n(counts.stopped), n(counts.preempted), n(counts.drafts.accepted),
      n(counts.drafts.drafted));
}

}  // namespace kvasir
