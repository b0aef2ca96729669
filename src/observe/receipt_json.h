// A Receipt as JSON: `kvasir` in a server's answers, `receipt` in `kvasir run --json`.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "kvasir/receipt.h"

namespace kvasir {

// {"prompt_tokens", "computed", "reused": {"pool", "partial", "disk", "remote"},
//  "preemptions", "recomputed", "miss": {"reason", "at_token", "message_index"}, "ignored",
//  "saved_ms", "queue_ms", "ttft_ms", "tpot_ms"}. Every key is always present; `miss` and
//  `message_index` are null where absent.
// `recomputed` is there where it is not 0.
nlohmann::json ReceiptJson(const Receipt& receipt);

}  // namespace kvasir
