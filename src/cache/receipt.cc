#include "kvasir/receipt.h"

#include <algorithm>

namespace kvasir {

const char* ToString(MissReason reason) {
  switch (reason) {
    case MissReason::kCold:
      return "cold";
    case MissReason::kDiverged:
      return "diverged";
    case MissReason::kEvicted:
      return "evicted";
    case MissReason::kIdentityChanged:
      return "identity_changed";
    case MissReason::kDisabled:
      return "disabled";
    case MissReason::kWindow:
      return "window";
    case MissReason::kRopeChanged:
      return "rope_changed";
    case MissReason::kPoolFull:
      return "pool_full";
    case MissReason::kOvertaken:
      return "overtaken";
    case MissReason::kUnreadable:
      return "unreadable";
    case MissReason::kTemplateRewrote:
      return "template_rewrote";
    case MissReason::kRetokenized:
      return "retokenized";
    case MissReason::kAdapterChanged:
      return "adapter_changed";
    case MissReason::kRemoteDown:
      return "remote_down";
  }
  return "unknown";
}

void Receipt::Add(const Receipt& other) {
  prompt_tokens += other.prompt_tokens;
  computed += other.computed;
  reused_pool += other.reused_pool;
  reused_partial += other.reused_partial;
  reused_disk += other.reused_disk;
  reused_remote += other.reused_remote;
  source_tokens += other.source_tokens;
  source_reused += other.source_reused;
  preemptions += other.preemptions;
  recomputed += other.recomputed;
  if (!miss) miss = other.miss;
  saved_ms += other.saved_ms;
  if (other.ttft_ms < ttft_ms) {  // with its parts
    ttft_ms = other.ttft_ms;
    queue_ms = other.queue_ms;
    shared_ms = other.shared_ms;
    cache_ms = other.cache_ms;
    load_ms = other.load_ms;
    compute_ms = other.compute_ms;
    estimate_ms = other.estimate_ms;
  }
  tpot_ms = std::max(tpot_ms, other.tpot_ms);
  draft.Add(other.draft);
  if (!retention || (other.retention && other.retention->dropped > retention->dropped)) {
    retention = other.retention;
  }
  if (!other.spans) return;
  if (!spans) spans.emplace();
  spans->count += other.spans->count;
  spans->plain += other.spans->plain;
  spans->reused_tokens += other.spans->reused_tokens;
  spans->computed_tokens += other.spans->computed_tokens;
  spans->seam_tokens += other.spans->seam_tokens;
  if (!spans->inexact_from) spans->inexact_from = other.spans->inexact_from;
}

}  // namespace kvasir
