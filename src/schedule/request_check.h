// Checks whether an engine can run a request, before it is queued.
#pragma once

#include <memory>

#include "kvasir/engine_event.h"
#include "kvasir/engine_options.h"
#include "kvasir/generate_request.h"
#include "schedule/request.h"

namespace kvasir {

// The longest prompt + answer of --cache none, which computes everything again for every token.
inline constexpr uint32_t kMaxTokensWithoutCache = 4096;

struct RequestLimits {
  uint32_t ctx_size = 0;
  uint32_t max_positions = 0;  // of the model's training
  uint32_t vocab_size = 0;
  uint32_t source_vocab_size = 0;  // of a model with an encoder
  uint32_t parallel = 0;
  uint32_t num_blocks = 0;   // that this request may have
  uint32_t pool_blocks = 0;  // that there are; more where tenants have quotas
  const KvLayout* layout = nullptr;
  uint32_t step_tokens = 0;  // KvCache's
  CacheMode cache_mode = CacheMode::kPrefix;
  RetentionChoice retention;  // of requests that do not say
  // What says why no sequence may drop tokens; empty: they may.
  std::string_view no_retention = "";
  std::string_view no_spans = "";      // the same of spans
  std::span<const TokenId> bos = {};   // tokens that begin a text
  bool has_learned_positions = false;  // then no sequence is longer than max_positions
  const Tokenizer* tokenizer = nullptr;
  std::string_view no_text = "";  // why there is none
};

// Returns the request with its demand, and with max_tokens clipped to context and pool (the caller
// sets id, seed and times). kInvalidArgument names the field, the numbers and the fix.
Result<std::unique_ptr<Request>> CheckRequest(GenerateRequest spec, EventSink sink,
                                              const RequestLimits& limits);

}  // namespace kvasir
