// The check of selftest of sequences that drop some of their tokens.
#include <fmt/format.h>

#include <algorithm>

#include "base/result.h"
#include "cli/selftest_run.h"

namespace kvasir::cli {
namespace {

constexpr uint32_t kHeavyPrompt = 250;  // tokens: decisions fall into it, or at its end
constexpr uint32_t kHeavyAnswer = 200;  // to three decisions more
constexpr uint32_t kHeavyBudget = 128;  // with several blocks to choose
constexpr uint32_t kHeavyAnswerOfLarge = 50;

bool HasWindows(Lab& lab) {
  return std::ranges::any_of(lab.engine().plan().groups,
                             [](const KvGroupPlan& group) { return group.window.has_value(); });
}

// Compares misses of some chunks, then hits, with `request` computed at once. Returns that.
Result<Generated> CompareRetained(Lab& lab, Check& check, const GenerateRequest& request) {
  GenerateRequest cold = request;
  cold.reuse = Reuse::kNothing;
  KV_ASSIGN(Generated want, RunAlone(lab.engine(), cold));
  for (const uint32_t chunk : {1u, 17u, 64u}) {
    GenerateRequest chunked = cold;
    chunked.chunk_tokens = chunk;
    KV_ASSIGN(const Generated got, RunAlone(lab.engine(), std::move(chunked)));
    check.Compare(want, got, fmt::format("retained, chunks of {}", chunk));
  }
  KV_ASSIGN(const auto engine, lab.Load(lab.options()));
  for (const char* time : {"the first time", "from the cache", "after an exact prompt"}) {
    KV_ASSIGN(const Generated got, RunAlone(*engine, request));
    check.Compare(want, got, fmt::format("retained, {}", time));
    if (time == std::string_view("from the cache")) {
      // heavy matches to 32 tokens before its first decision alone, where windows have gone on.
      const bool may_miss = request.retention->policy == Retention::kHeavy && HasWindows(lab);
      check.Expect(may_miss || got.receipt.cached_tokens() > 0, "retained: nothing was reused");
      GenerateRequest exact = lab.Ask(Joined(request.prompt, want.answers[0]));
      exact.prompt.resize(std::min<size_t>(exact.prompt.size(), *lab.options().ctx_size / 2));
      KV_TRY(RunAlone(*engine, std::move(exact)));
    }
  }
  return want;
}

// Checks decisions that look at weights; then the same with drafts of which some are wrong.
Status RetainedHeavy(Lab& lab, Check& check) {
  const bool is_large = lab.prompt_sizes().size() == 1;
  const uint32_t budget =
      std::clamp(*lab.options().ctx_size / 64 * kHeavyBlock, kMinHeavyBudget, kHeavyBudget);
  const Tokens prompt = lab.RandomTokens(std::min(kHeavyPrompt, *lab.options().ctx_size / 2));
  const auto vocab = static_cast<TokenId>(lab.engine().card().vocab_size);
  for (const std::optional<uint32_t> exact_tokens :
       {std::optional(0u), std::optional<uint32_t>()}) {
    GenerateRequest request = lab.Ask(prompt);
    request.max_tokens = is_large ? kHeavyAnswerOfLarge : kHeavyAnswer;
    request.retention = {
        .policy = Retention::kHeavy, .budget = budget, .exact_tokens = exact_tokens};
    KV_ASSIGN(const Generated want, CompareRetained(lab, check, request));
    EngineOptions options = lab.options();
    options.speculate = Speculate::kAlways;
    KV_ASSIGN(const auto engine, lab.Load(options));
    request.prediction = want.answers[0];
    for (size_t i = 2; i < request.prediction.size(); i += 3) {
      request.prediction[i] = (request.prediction[i] + 1) % vocab;
    }
    KV_ASSIGN(const Generated got, RunAlone(*engine, std::move(request)));
    check.Compare(want, got, "retained, drafted");
    const RetentionReceipt& receipt = *got.receipt.retention;
    check.Expect(receipt.decisions > 0 || !receipt.inexact_from, "retained: nothing was decided");
  }
  return {};
}

}  // namespace

// Checks misses, hits, chunks and drafts; then what another request has computed exactly. With
// budgets that end within the prompt, most of it is computed without what it has dropped.
Status Retained(Lab& lab, Check& check) {
  const auto size = static_cast<uint32_t>(lab.prompt().size());
  const uint32_t budget = std::max(kMinRetentionBudget, size / 3);
  for (const RetentionChoice& choice :
       {RetentionChoice{.policy = Retention::kSinksWindow, .budget = budget, .exact_tokens = 0},
        RetentionChoice{.policy = Retention::kWindow, .budget = budget, .exact_tokens = 0},
        RetentionChoice{.policy = Retention::kSinksWindow, .budget = budget}}) {
    GenerateRequest request = lab.Ask(lab.prompt());
    request.retention = choice;
    KV_TRY(CompareRetained(lab, check, request));
  }
  const EngineOptions& options = lab.options();
  const bool may_decide =
      options.block_tokens == kHeavyBlock && *options.ctx_size > kMinHeavyBudget;
  if (may_decide && size == lab.prompt_sizes()[0]) KV_TRY(RetainedHeavy(lab, check));
  return {};
}

}  // namespace kvasir::cli
