// A Receipt as JSON: `kvasir` in a server's answers, `receipt` in `kvasir run --json`.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "kvasir/receipt.h"

namespace kvasir {

// Returns {"prompt_tokens", "computed", "reused": {"pool", "partial", "disk", "remote"},
// "preemptions", "recomputed", "miss": {"reason", "at_token", "message_index"}, "ignored",
// "saved_ms", "queue_ms", "shared_ms", "cache_ms", "load_ms", "compute_ms", "estimate_ms",
// "ttft_ms", "tpot_ms", "draft": {"steps", "drafted", "accepted", "sources": {"memory",
// "prediction"}}, "inexact": {"from", "why"}, "retention": {"policy", "budget", "sinks", "recent",
// "kept", "dropped", "decisions", "inexact_from"}, "spans": {"count", "plain", "reused_tokens",
// "computed_tokens", "seam_tokens"}}. Every key is always present; `miss`, `message_index`,
// `estimate_ms`, `draft`, `inexact`, `retention`, `inexact_from` and `spans` are null where
// absent. Only where it says something: "clock_in_prompt", "kept", "cured": {"dropped", "moved"},
// "volatile": [{"message_index", "line", "repeated_tokens"}], and "source_tokens" with
// "source_reused".
nlohmann::json ReceiptJson(const Receipt& receipt);

}  // namespace kvasir
