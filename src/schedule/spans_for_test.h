// Random prompts with spans, and what receipts say of them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "base/random.h"
#include "kvasir/engine.h"
#include "policy/span_plan.h"

namespace kvasir {

// Makes a prompt of a few of its first tokens, one or two of three documents, and a question: at
// most max_tokens, of tokens below 3.
inline void AddRandomSpans(Random& random, uint32_t max_tokens, GenerateRequest& spec) {
  spec.retention.reset();
  spec.prompt.resize(std::min<size_t>(spec.prompt.size(), random.Below(20)));
  if (spec.prompt.empty()) spec.prompt.push_back(1);
  PromptSpans& spans = spec.spans.emplace();
  spans.seam = static_cast<uint32_t>(random.Below(2) * random.Below(12));
  if (random.Below(2) == 0) {
    spans.head = static_cast<uint32_t>(random.Below(spec.prompt.size() + 1));
  }
  const uint64_t num_documents = 1 + random.Below(2);
  for (uint64_t i = 0; i < num_documents; ++i) {
    const auto document = static_cast<uint32_t>(random.Below(3));
    const auto begin = static_cast<uint32_t>(spec.prompt.size());
    const uint32_t end = begin + kMinSpanTokens + document * 3;
    if (end > max_tokens) break;
    for (uint32_t t = begin; t < end; ++t) {
      spec.prompt.push_back(static_cast<TokenId>(Mix64(document * 64 + t - begin) % 3));
    }
    spans.spans.push_back({begin, end});
    if (random.Below(2) == 0 && end < max_tokens) spec.prompt.push_back(2);
  }
  const uint64_t question = random.Below(12);
  for (uint64_t i = 0; i < question && spec.prompt.size() < max_tokens; ++i) {
    spec.prompt.push_back(static_cast<TokenId>(random.Below(3)));
  }
}

// Expects that all tokens of the spans are counted, or those that the request came to: its answer
// `began` or not. Returns whether some are not counted.
inline bool CheckSpansReceipt(const SpanPlan& plan, const Receipt& receipt, bool began) {
  const SpansReceipt& spans = receipt.spans.value();
  uint32_t tokens = 0;
  for (const auto& [begin, end] : plan.choice().spans) {
    tokens += end - begin < kMinSpanTokens ? 0 : end - begin;
  }
  const uint32_t counted = spans.reused_tokens + spans.computed_tokens + spans.seam_tokens;
  EXPECT_TRUE(began ? counted == tokens : counted <= tokens) << counted << " of " << tokens;
  return counted < tokens;
}

}  // namespace kvasir
