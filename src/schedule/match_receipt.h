// What a receipt says of a request's match and of its load from a tier.
#pragma once

#include "cache/kv_cache.h"
#include "kvasir/receipt.h"
#include "schedule/request.h"

namespace kvasir {

// Fills in the receipt of a request that was matched for the first time.
void ExplainMatch(Request& request, const MatchResult& match);
// Sets the receipt's miss, and its message_index to the message that has the first token not found.
void SetReceiptMiss(Request& request, MissReason reason, uint32_t at_token);

}  // namespace kvasir
