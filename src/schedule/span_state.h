// SpanState: how far a request's spans are read.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "cache/kv_cache.h"
#include "model/runner.h"
#include "policy/span_plan.h"
#include "schedule/sequence.h"

namespace kvasir {

// One SpanPlan::Part while its request runs: the head and the span, an ordinary prompt.
struct SpanPart {
  Sequence sequence;        // without blocks until the part is begun, or what was resident then
  Reservation reservation;  // for what the sequence still takes
  uint32_t computed = 0;    // tokens of those that are read that it computed
  uint32_t from_disk = 0, from_remote = 0;  // tokens that it loaded
};

// Why the parts of a request that waits found no room, and from how many blocks on, that its
// account could reserve before them, they may find it.
struct SpanRefusal {
  Error error;
  uint32_t least_blocks;
};

// Parts are read one after the other, once the request's first sequence has all its exact tokens.
struct SpanState {
  std::optional<SpanPlan> plan;                  // absent: the request has no spans
  std::vector<std::unique_ptr<SpanPart>> parts;  // [plan->parts()], while it runs
  std::optional<SpanRefusal> refusal;            // of the last try to admit it
  uint32_t num_read = 0;                         // parts whose KV is there
  bool is_reading = false;            // part `num_read` is being matched, loaded or computed
  std::vector<StepRun> runs;          // what a token after all parts sees before its own tables
  std::vector<uint32_t> runs_before;  // [part]: the runs of a token between it and the part before
  uint32_t num_counted = 0;           // parts that the receipt has
  uint32_t reused_tokens = 0, computed_tokens = 0;  // of these
  uint32_t computed_of_next = 0;                    // of the next one, before preemptions too
  uint32_t reached = 0;  // the most tokens that a choice had, when it ended

  // Gives back what its parts hold. What they computed and committed can be found.
  void Stop() {
    is_reading = false;
    num_read = 0;
    runs.clear();
    runs_before.clear();
    parts.clear();
  }
  Sequence* reading() { return is_reading ? &parts[num_read]->sequence : nullptr; }
  // Returns the runs that a token at a position sees. REQUIRES: it is not exact, and computed.
  std::span<const StepRun> RunsAt(uint32_t position) const {
    const uint32_t before = plan->NumBefore(position);
    return std::span(runs).first(before == runs_before.size() ? runs.size() : runs_before[before]);
  }
  // Returns where the tokens of a sequence's own tables begin that no run has.
  uint32_t BeginAt(uint32_t position) const {
    const uint32_t before = plan->NumBefore(position);
    return before == 0 ? 0 : plan->parts()[before - 1].read_end;
  }
};

}  // namespace kvasir
