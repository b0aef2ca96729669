// The check of selftest of sequences that drop some of their tokens.
#include <fmt/format.h>

#include <algorithm>

#include "base/result.h"
#include "cli/selftest_run.h"

namespace kvasir::cli {

// Misses, hits, chunks and choices; then what another request has computed exactly. With budgets
// that end within the prompt, most of it is computed without what it has dropped.
Status Retained(Lab& lab, Check& check) {
  const auto size = static_cast<uint32_t>(lab.prompt().size());
  const uint32_t budget = std::max(kMinRetentionBudget, size / 3);
  for (const RetentionChoice& choice :
       {RetentionChoice{.policy = Retention::kSinksWindow, .budget = budget, .exact_tokens = 0},
        RetentionChoice{.policy = Retention::kWindow, .budget = budget, .exact_tokens = 0},
        RetentionChoice{.policy = Retention::kSinksWindow, .budget = budget}}) {
    const auto ask = [&] {
      GenerateRequest request = lab.Ask(lab.prompt());
      request.retention = choice;
      return request;
    };
    GenerateRequest cold = ask();
    cold.reuse = Reuse::kNothing;
    KV_ASSIGN(const Generated want, RunAlone(lab.engine(), cold));
    for (const uint32_t chunk : {1u, 17u, 64u}) {
      GenerateRequest chunked = cold;
      chunked.chunk_tokens = chunk;
      KV_ASSIGN(const Generated got, RunAlone(lab.engine(), std::move(chunked)));
      check.Compare(want, got, fmt::format("retained, chunks of {}", chunk));
    }
    KV_ASSIGN(const auto engine, lab.Load(lab.options()));
    for (const char* time : {"the first time", "from the cache", "after an exact prompt"}) {
      KV_ASSIGN(const Generated got, RunAlone(*engine, ask()));
      check.Compare(want, got, fmt::format("retained, {}", time));
      if (time == std::string_view("from the cache")) {
        check.Expect(got.receipt.cached_tokens() > 0, "retained: nothing was reused");
        KV_TRY(RunAlone(*engine, lab.Ask(Joined(lab.prompt(), want.answers[0]))));
      }
    }
  }
  return {};
}

}  // namespace kvasir::cli
