// The check of adapters: prompts that are the same, each with other adapters or none.
#include <fmt/format.h>

#include <algorithm>

#include "base/result.h"
#include "cli/selftest_run.h"

namespace kvasir::cli {
namespace {

constexpr uint32_t kRank = 8;                         // of adapters with a seed
constexpr uint64_t kMemoryBytes = uint64_t{2} << 30;  // two of a model of 70B take 0.8 GB

// Returns whether a row that both have differs.
bool Differ(const Generated& one, const Generated& other) {
  for (const auto& [place, digest] : one.rows) {
    const auto found = other.rows.find(place);
    if (found != other.rows.end() && found->second != digest) return true;
  }
  return false;
}

// Loads an engine with two adapters more than the user's.
Result<std::unique_ptr<Engine>> LoadWithTwo(const Lab& lab, std::vector<AdapterChoice>* own) {
  EngineOptions options = lab.options();
  options.adapters.loads_later = true;
  options.adapters.max_loaded += 2;
  options.adapters.max_rank = std::max(options.adapters.max_rank, kRank);
  options.adapters.memory_bytes = options.adapters.memory_bytes.value_or(0) + kMemoryBytes;
  KV_ASSIGN(auto engine, lab.Load(options));
  for (const uint64_t seed : {1, 2}) {
    const AdapterSource source{
        .path = "", .name = fmt::format("selftest {}", seed), .scale = 0, .seed = seed};
    KV_ASSIGN(const AdapterCard card,
              engine->LoadAdapter(source, Engine::AdapterNames::kMustBeNew));
    own->push_back({card.id, 1});
  }
  return engine;
}

}  // namespace

Status Adapters(Lab& lab, Check& check) {
  std::vector<AdapterChoice> own;
  KV_ASSIGN(const auto engine, LoadWithTwo(lab, &own));
  const std::vector<std::vector<AdapterChoice>> lists = {
      {}, {own[0]}, {own[1]}, {{own[0].id, 0.5}, {own[1].id, 1.5}}};
  std::vector<Generated> want;
  for (const auto& list : lists) {
    GenerateRequest cold = lab.Ask(lab.prompt());
    cold.adapters = list;
    cold.reuse = Reuse::kNothing;
    KV_ASSIGN(Generated generated, RunAlone(*engine, std::move(cold)));
    if (!want.empty()) check.Expect(Differ(want[0], generated), "adapters change nothing");
    want.push_back(std::move(generated));
  }
  for (const bool warm : {false, true}) {
    std::vector<GenerateRequest> requests;
    for (const auto& list : lists) {
      requests.push_back(lab.Ask(lab.prompt()));
      requests.back().adapters = list;
    }
    KV_ASSIGN(const std::vector<Generated> got, RunTogether(*engine, std::move(requests)));
    for (size_t i = 0; i < got.size(); ++i) {
      const std::string what = fmt::format("{} list {}", warm ? "warm" : "cold", i);
      check.Compare(want[i], got[i], what);
      const bool reuses = got[i].receipt.cached_tokens() > 0;
      check.Expect(reuses == warm,
                   fmt::format("{}: {} tokens reused", what, got[i].receipt.cached_tokens()));
    }
  }
  return {};
}

}  // namespace kvasir::cli
