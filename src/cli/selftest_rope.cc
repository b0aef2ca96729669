// The check of selftest for models whose RoPE changes with the length of a sequence (longrope).
#include <fmt/format.h>

#include <algorithm>

#include "base/result.h"
#include "cli/selftest_run.h"

namespace kvasir::cli {

// Checks an answer that grows past the length: each row before it is the last one of a short
// prompt, each row from there on that of a long one. The next turn reuses what was computed again.
Status Crossed(Lab& lab, Check& check) {
  const uint32_t after = *lab.rope_switch();
  EngineOptions options = lab.options();
  options.ctx_size = after + 2 * lab.answer_tokens() + 1;
  KV_ASSIGN(const auto engine, lab.Load(options));
  if (!engine->card().long_rope_after) return {};
  GenerateRequest request = lab.Ask(lab.RandomTokens(after - std::min(after, 6u) + 1));
  request.n = 2;
  std::vector<TokenId> tokens = request.prompt;
  KV_ASSIGN(const Generated generated, RunAlone(*engine, request));
  check.Expect(generated.receipt.recomputed > 0, "crossed: nothing was computed again");
  for (const auto& [where, digest] : generated.rows) {
    if (where.second < request.prompt.size()) continue;
    const auto& answer = generated.answers[where.first];
    std::vector<TokenId> prefix = request.prompt;
    prefix.insert(prefix.end(), answer.begin(), answer.end());
    prefix.resize(where.second + 1);
    GenerateRequest alone = lab.Ask(std::move(prefix));
    alone.max_tokens = 0;
    alone.reuse = Reuse::kNothing;
    KV_ASSIGN(const Generated want, RunAlone(*engine, std::move(alone)));
    check.CompareRow(want.rows.at({0, where.second}), digest,
                     fmt::format("crossed, choice {}, row {}", where.first, where.second));
  }
  tokens.insert(tokens.end(), generated.answers[0].begin(), generated.answers[0].end());
  KV_ASSIGN(const Generated want, lab.Cold(*engine, tokens));
  KV_ASSIGN(const Generated next, RunAlone(*engine, lab.Ask(tokens)));
  check.Compare(want, next, "next turn after crossing");
  check.Expect(next.receipt.cached_tokens() + 1 >= tokens.size(),
               fmt::format("next turn after crossing: {} of {} tokens reused",
                           next.receipt.cached_tokens(), tokens.size() - 1));
  return {};
}

}  // namespace kvasir::cli
