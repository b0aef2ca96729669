// The check of selftest of prompts with spans.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/result.h"
#include "cli/selftest_run.h"

namespace kvasir::cli {

// Checks misses, hits and chunks; then spans that other prompts have brought, in another place.
Status Spanned(Lab& lab, Check& check) {
  std::vector<TokenId> prompt = lab.prompt();
  if (prompt.size() < kSpannedTokens) {
    const auto more = lab.RandomTokens(kSpannedTokens - prompt.size());
    prompt.insert(prompt.end(), more.begin(), more.end());
  }
  const auto size = static_cast<uint32_t>(prompt.size());
  const uint32_t begin = size / 8, middle = size / 2, end = size - size / 8;
  const auto ask = [&](uint32_t head) {
    GenerateRequest request = lab.Ask(prompt);
    request.spans = PromptSpans{.spans = {{begin, middle}, {middle, end}}, .seam = 8};
    request.spans->head = std::min(head, begin);
    return request;
  };
  for (const uint32_t head : {1u, begin}) {
    GenerateRequest cold = ask(head);
    cold.reuse = Reuse::kNothing;
    KV_ASSIGN(const Generated want, RunAlone(lab.engine(), cold));
    for (const uint32_t chunk : {1u, 17u, 64u}) {
      GenerateRequest chunked = cold;
      chunked.chunk_tokens = chunk;
      KV_ASSIGN(const Generated got, RunAlone(lab.engine(), std::move(chunked)));
      check.Compare(want, got, fmt::format("spans, chunks of {}", chunk));
    }
    KV_ASSIGN(const auto engine, lab.Load(lab.options()));
    // The second span alone, after the head.
    std::vector<TokenId> other(prompt.begin(), prompt.begin() + std::min(head, begin));
    other.insert(other.end(), prompt.begin() + middle, prompt.begin() + end);
    KV_TRY(RunAlone(*engine, lab.Ask(other)));
    for (const char* time : {"one of them from the cache", "all from the cache"}) {
      KV_ASSIGN(const Generated got, RunAlone(*engine, ask(head)));
      check.Compare(want, got, fmt::format("spans, {}", time));
      check.Expect(got.receipt.spans && got.receipt.spans->reused_tokens > 0,
                   "spans: nothing was reused");
    }
  }
  return {};
}

}  // namespace kvasir::cli
