// Restarts: sequences that grow past the length up to which RoPE longrope uses its short factors.
#include <algorithm>

#include "engine/scheduler.h"

namespace kvasir {

// The token that makes a sequence longer than after_tokens is known here, but not computed. From
// now on all tokens have the bits that a prompt of this length has.
void Scheduler::RestartSequences() {
  if (!options_.long_rope) return;
  for (const auto& request : running_) {
    // Choices restart one after the other, so that the first one's prompt serves all.
    const auto computes_prompt = [&](const auto& sequence) {
      return !sequence->done && sequence->long_rope && sequence->kv.shares() &&
             sequence->kv.num_committed() < request->prompt_tokens();
    };
    for (const auto& sequence : request->sequences) {
      if (!AwaitsRestart(*sequence)) continue;
      if (std::ranges::any_of(request->sequences, computes_prompt)) break;
      Restart(*request, *sequence);
    }
  }
}

void Scheduler::Restart(Request& request, Sequence& sequence) {
  // The old blocks go first. What it has published stays for short sequences.
  sequence.kv.Close();
  sequence.kv = KvSequence();
  ReleaseRestart(request, sequence);
  sequence.long_rope = true;
  retry_admission_ = true;
  // No Cursor: at least the last token is computed, and its row has the next logits.
  MatchResult match = Match(request, sequence.tokens, {.use_cursor = false, .counts = false});
  Result<Reservation> reservation = cache_.Reserve(match, request.demand.AfterRestart());
  if (!reservation) {  // a bug: what ReleaseRestart gave back is enough
    return EndRequest(request, FinishReason::kError, &reservation.error());
  }
  sequence.reservation = std::move(*reservation);
  const uint32_t recomputed = static_cast<uint32_t>(sequence.tokens.size()) - match.num_reused();
  request.receipt.recomputed += recomputed;
  stats_.recomputed_tokens += recomputed;
  const std::vector<uint32_t> points = cache_.ResumePointsOf(
      static_cast<uint32_t>(sequence.tokens.size()), request.spec.message_ends);
  sequence.kv = TimedCache([&] {
    return cache_.Fetch(std::move(match), request.demand.tokens + 1, sequence.reservation);
  });
  sequence.kv.KeepResumePoints(points);
}

// Gives back the blocks that are kept for the restart of a sequence.
void Scheduler::ReleaseRestart(Request& request, Sequence& sequence) {
  if (sequence.long_rope || !request.demand.restarts()) return;
  const uint32_t each = request.restarts.blocks() / (request.spec.n - request.num_restarted++);
  request.restarts.Shrink(each);
}

}  // namespace kvasir
