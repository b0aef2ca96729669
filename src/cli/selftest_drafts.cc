// The check of selftest that drafts.
#include <fmt/format.h>

#include "base/result.h"
#include "cli/selftest_run.h"

namespace kvasir::cli {

// Checks predictions that are right, wrong, and right in part; then drafts of what the cache has
// seen.
Status Drafted(Lab& lab, Check& check) {
  EngineOptions options = lab.options();
  options.speculate = Speculate::kAlways;
  KV_ASSIGN(const auto engine, lab.Load(options));
  const auto vocab = static_cast<TokenId>(lab.engine().card().vocab_size);
  const Tokens& answer = lab.reference().answers[0];
  uint32_t accepted = 0, rejected = 0;
  // Each salt is a cache that has seen nothing yet.
  const auto ask = [&](const Tokens& prediction, const std::string& salt,
                       const std::string& what) -> Status {
    GenerateRequest request = lab.Ask(lab.prompt());
    request.prediction = prediction;
    request.cache_salt = salt;
    KV_ASSIGN(const Generated generated, RunAlone(*engine, std::move(request)));
    check.Compare(lab.reference(), generated, what);
    accepted += generated.receipt.draft.all_accepted();
    rejected += generated.receipt.draft.all_drafted() - generated.receipt.draft.all_accepted();
    return {};
  };
  for (const size_t wrong_every : {size_t{1}, size_t{3}, answer.size() + 1}) {
    Tokens prediction = answer;
    for (size_t i = wrong_every - 1; i < prediction.size(); i += wrong_every) {
      prediction[i] = (prediction[i] + 1) % vocab;
    }
    KV_TRY(ask(prediction, fmt::format("{}", wrong_every),
               fmt::format("one of {} predicted tokens wrong", wrong_every)));
  }
  KV_TRY(ask({}, "1", "drafted from the cache"));
  check.Expect(accepted > 0, "no drafted token was right");
  check.Expect(rejected > 0, "no drafted token was wrong");
  return {};
}

}  // namespace kvasir::cli
