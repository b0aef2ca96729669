#include "sampling/beam_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/random.h"
#include "base/rounds_for_test.h"
#include "simd/math.h"
#include "source_paths.h"

namespace kvasir {
namespace {

using Ids = std::vector<TokenId>;
using Logits = std::function<std::vector<float>(const Ids&)>;  // of the token after these

struct Found {
  Ids ids;
  float score;
  bool operator==(const Found&) const = default;
};

std::vector<Found> Search(const BeamOptions& options, const Logits& logits_of,
                          uint64_t* num_steps = nullptr) {
  BeamSearch search(options);
  std::vector<LogitRow> rows(options.beams);
  std::vector<std::vector<float>> logits(options.beams);
  while (!search.done()) {
    const auto num = static_cast<uint32_t>(search.beams().size());
    for (uint32_t i = 0; i < num; ++i) {
      const auto tokens = search.tokens(i);
      logits[i] = logits_of(Ids(tokens.begin(), tokens.end()));
      EXPECT_TRUE(rows[i].Read(logits[i], ExpSumFor(BestTarget())));
    }
    search.Advance(std::span(rows).first(num));
    if (num_steps != nullptr) ++*num_steps;
  }
  std::vector<Found> found;
  for (const auto& one : search.best()) {
    found.push_back({Ids(one.tokens.begin(), one.tokens.end()), one.score});
  }
  return found;
}

// Beam search over whole sequences and all candidates, as transformers' _beam_search goes, without
// its beams of -1e9.
class Reference {
 public:
  Reference(const BeamOptions& options, Logits logits_of)
      : o_(options), logits_of_(std::move(logits_of)) {}

  std::vector<Found> Run() {
    std::vector<Found> beams = {{{o_.start}, 0}}, done;
    const size_t kept = std::max<size_t>(2, 1 + o_.ends.size()) * o_.beams;
    for (uint32_t length = 1; !beams.empty(); ++length) {
      std::vector<Found> all;  // in the order of beams, then of ids
      for (const Found& beam : beams) {
        const std::vector<float> p = Probabilities(beam.ids);
        for (size_t id = 0; id < p.size(); ++id) {
          if (std::isinf(p[id])) continue;
          all.push_back({beam.ids, beam.score + p[id]});
          all.back().ids.push_back(static_cast<TokenId>(id));
        }
      }
      std::ranges::stable_sort(all, std::greater(), &Found::score);
      all.resize(std::min(all.size(), kept));
      beams.clear();
      for (size_t i = 0; i < all.size(); ++i) {
        const bool ends = length == o_.max_tokens || IsEnd(all[i].ids.back());
        if (!ends && beams.size() < o_.beams) beams.push_back(all[i]);
        if (!ends || i >= o_.beams) continue;
        done.push_back({all[i].ids, Score(all[i].score, length)});
      }
      std::ranges::stable_sort(done, std::greater(), &Found::score);
      done.resize(std::min<size_t>(done.size(), o_.beams));
      if (beams.empty() || done.size() < o_.beams) continue;
      if (o_.early_stopping == EarlyStopping::kTrue) break;
      const bool at_last = o_.early_stopping == EarlyStopping::kNever && o_.length_penalty > 0;
      if (Score(beams[0].score, at_last ? o_.max_tokens : length) <= done.back().score) break;
    }
    done.resize(std::min<size_t>(done.size(), o_.hypotheses));
    return done;
  }

 private:
  bool IsEnd(TokenId id) const { return std::ranges::count(o_.ends, id) > 0; }
  float Score(float sum, uint32_t length) const {
    return sum / static_cast<float>(Exp(double{o_.length_penalty} * Log(length)));
  }
  std::vector<float> Probabilities(const Ids& ids) const {
    std::vector<float> p = logits_of_(ids);
    if (ids.size() == 1 && o_.forced) {
      std::ranges::fill(p, -INFINITY);
      p[static_cast<size_t>(*o_.forced)] = 0;
      return p;
    }
    const float max = *std::ranges::max_element(p);
    const float sum = ExpSumFor(Target::kScalar)(p.data(), static_cast<uint32_t>(p.size()), max);
    for (float& x : p) x = (x - max) - static_cast<float>(Log(sum));
    for (const TokenId id : std::set<TokenId>(ids.begin(), ids.end())) {
      float& x = p[static_cast<size_t>(id)];
      if (o_.repetition_penalty != 1) {
        x = x < 0 ? x * o_.repetition_penalty : x / o_.repetition_penalty;
      }
    }
    const size_t n = o_.no_repeat_ngram_size;
    for (size_t i = 0; n > 0 && i + n <= ids.size(); ++i) {
      if (std::equal(ids.begin() + static_cast<ptrdiff_t>(i),
                     ids.begin() + static_cast<ptrdiff_t>(i + n - 1),
                     ids.end() - static_cast<ptrdiff_t>(n) + 1)) {
        p[static_cast<size_t>(ids[i + n - 1])] = -INFINITY;
      }
    }
    for (const TokenId id : o_.ends) {
      if (ids.size() - 1 < o_.min_tokens) p[static_cast<size_t>(id)] = -INFINITY;
    }
    return p;
  }

  const BeamOptions o_;
  const Logits logits_of_;
};

BeamOptions RandomOptions(Random& random, uint32_t vocab) {
  const auto below = [&](uint64_t n) { return static_cast<uint32_t>(random.Below(n)); };
  BeamOptions options;
  options.beams = 1 + below(random.Below(8) == 0 ? 16 : 5);
  options.hypotheses = 1 + below(options.beams);
  options.length_penalty = std::vector<float>{0, 0.5f, 1, 1, 2, -1}[below(6)];
  options.early_stopping = static_cast<EarlyStopping>(below(3));
  options.max_tokens = 1 + below(9);
  options.min_tokens = below(2) * below(options.max_tokens + 1);
  options.no_repeat_ngram_size = below(3) == 0 ? below(4) : 0;
  options.repetition_penalty = std::vector<float>{1, 1, 0.75f, 1.5f}[below(4)];
  options.start = static_cast<TokenId>(below(vocab));
  if (below(2) == 0) options.forced = static_cast<TokenId>(below(vocab));
  for (uint32_t i = below(3); i > 0; --i)
    options.ends.push_back(static_cast<TokenId>(below(vocab)));
  if (options.ends.size() == 2 && options.ends[0] == options.ends[1]) options.ends.pop_back();
  return options;
}

TEST(BeamSearch, EqualsTheReferenceOnRandomProblems) {
  uint64_t found = 0, ties = 0;
  for (uint64_t seed = 0; seed < Rounds(10000u, 2000u); ++seed) {
    Random random(seed);
    const auto vocab = static_cast<uint32_t>(2 + random.Below(seed % 50 == 0 ? 700 : 20));
    const BeamOptions options = RandomOptions(random, vocab);
    const uint64_t levels = random.Below(3) == 0 ? 3 : 1 << 20;  // few levels: many equal scores
    const float scale = static_cast<float>(random.Below(12)) + 0.5f;
    const Logits logits_of = [&](const Ids& ids) {
      uint64_t key = seed;
      for (const TokenId id : ids)
        key = key * 0x9E3779B97F4A7C15ull + static_cast<uint64_t>(id) + 1;
      Random row(key);
      std::vector<float> logits(vocab);
      for (float& x : logits) {
        x = static_cast<float>(row.Below(levels)) / static_cast<float>(levels) * scale;
      }
      return logits;
    };
    const auto got = Search(options, logits_of);
    const auto expected = Reference(options, logits_of).Run();
    ASSERT_EQ(got, expected) << "seed " << seed;
    found += got.size();
    for (size_t i = 1; i < got.size(); ++i) ties += got[i].score == got[i - 1].score;
  }
  EXPECT_GT(found, Rounds(10000u, 2000u));
  EXPECT_GT(ties, Rounds(50u, 5u));
}

// What transformers finds (tools/make_beam_goldens.py); the logits come from integers.
TEST(BeamSearch, EqualsTransformers) {
  std::ifstream file(std::string(KVASIR_SOURCE_DIR) + "/tests/data/beam_search.json");
  const nlohmann::json problems = nlohmann::json::parse(file);
  ASSERT_GE(problems.size(), 100u);
  const std::map<std::string, EarlyStopping> stoppings = {{"false", EarlyStopping::kFalse},
                                                          {"true", EarlyStopping::kTrue},
                                                          {"never", EarlyStopping::kNever}};
  for (const auto& problem : problems) {
    BeamOptions options;
    options.beams = options.hypotheses = problem["beams"];
    options.length_penalty = problem["length_penalty"];
    options.early_stopping = stoppings.at(problem["early_stopping"]);
    options.min_tokens = problem["min_tokens"];
    options.max_tokens = problem["max_tokens"];
    options.no_repeat_ngram_size = problem["no_repeat_ngram_size"];
    options.repetition_penalty = problem["repetition_penalty"];
    options.start = 2;
    options.ends = {2};
    if (!problem["forced"].is_null()) options.forced = problem["forced"].get<TokenId>();
    const uint32_t seed = problem["seed"], vocab = problem["vocab"], scale = problem["scale"];
    const auto found = Search(options, [&](const Ids& ids) {
      std::vector<float> logits(vocab);
      for (uint32_t i = 0; i < vocab; ++i) {
        uint32_t x = seed + 977u * static_cast<uint32_t>(ids.size()) +
                     7919u * static_cast<uint32_t>(ids.back()) + 104729u * i;
        x = (x ^ x >> 16) * 0x45d9f3bu;
        x = (x ^ x >> 16) * 0x45d9f3bu;
        x ^= x >> 16;
        logits[i] = static_cast<float>(x & 0xffff) * static_cast<float>(scale) / 65536.0f;
      }
      logits[2] += problem["end_bias"].get<float>();
      return logits;
    });
    ASSERT_EQ(found.size(), problem["hypotheses"].size()) << problem;
    for (size_t i = 0; i < found.size(); ++i) {
      const auto& expected = problem["hypotheses"][i];
      EXPECT_EQ(found[i].ids, expected["ids"].get<Ids>()) << i << " " << problem;
      EXPECT_NEAR(found[i].score, expected["score"].get<float>(), 2e-5) << i << " " << problem;
    }
  }
}

TEST(BeamSearch, SaysWhichBeamEachComesFrom) {
  // Token 1 is likely at first; after token 0 everything else is unlikely.
  const Logits logits_of = [](const Ids& ids) {
    return ids.back() == 0 ? std::vector<float>{9, 0, 0} : std::vector<float>{1, 1.5f, 0};
  };
  BeamSearch search({.beams = 2, .max_tokens = 3, .start = 2});
  std::vector<LogitRow> rows(2);
  const auto advance = [&] {
    std::vector<std::vector<float>> logits;
    for (uint32_t i = 0; i < search.beams().size(); ++i) {
      const auto tokens = search.tokens(i);
      logits.push_back(logits_of(Ids(tokens.begin(), tokens.end())));
      ASSERT_TRUE(rows[i].Read(logits.back(), ExpSumFor(BestTarget())));
    }
    search.Advance(std::span(rows).first(search.beams().size()));
  };
  ASSERT_EQ(search.beams().size(), 1u);
  EXPECT_EQ(search.tokens(0)[0], 2);
  advance();
  ASSERT_EQ(search.beams().size(), 2u);
  EXPECT_EQ(search.beams()[0].token, 1);
  EXPECT_EQ(search.beams()[1].token, 0);
  advance();
  ASSERT_EQ(search.beams().size(), 2u);
  EXPECT_EQ(search.beams()[0].parent, 1u);
  EXPECT_EQ(Ids(search.tokens(0).begin(), search.tokens(0).end()), (Ids{2, 0, 0}));
  EXPECT_EQ(search.beams()[1].parent, 0u);
  EXPECT_FALSE(search.done());
  advance();
  EXPECT_TRUE(search.done());
  EXPECT_TRUE(search.beams().empty());
  ASSERT_EQ(search.best().size(), 1u);
  EXPECT_EQ(search.num_finished(), 2u);
  EXPECT_FALSE(search.best()[0].ended);
  const auto tokens = search.best()[0].tokens;
  EXPECT_EQ(Ids(tokens.begin(), tokens.end()), (Ids{2, 0, 0, 0}));
}

TEST(BeamSearch, ForcesTheFirstTokenWithoutARow) {
  BeamSearch search({.beams = 3, .max_tokens = 2, .start = 2, .forced = 7, .ends = {2}});
  EXPECT_FALSE(search.NeedsRows());
  search.Advance({});
  EXPECT_TRUE(search.NeedsRows());
  ASSERT_EQ(search.beams().size(), 1u);
  EXPECT_EQ(search.beams()[0].token, 7);
  EXPECT_EQ(search.beams()[0].sum, 0);
}

TEST(BeamSearch, EndsWhereNoTokenIsAllowed) {
  const auto found =
      Search({.beams = 2, .max_tokens = 5, .no_repeat_ngram_size = 1, .start = 0}, [](const Ids&) {
        return std::vector<float>{0, 1};
      });
  EXPECT_TRUE(found.empty());
}

TEST(BeamSearch, AScoreIsFinite) {
  const BeamOptions options{
      .beams = 2, .length_penalty = -10, .min_tokens = 20, .max_tokens = 20, .ends = {0}};
  const auto unlikely = [](const Ids&) { return std::vector<float>{0, -1e30f, -1e30f}; };
  const std::vector<Found> found = Search(options, unlikely);  // -2e31 * 20 ** 10
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].score, std::numeric_limits<float>::lowest());
}

TEST(LogitRow, RefusesWhatIsNotFinite) {
  LogitRow row;
  std::vector<float> logits(300, 1.0f);
  EXPECT_TRUE(row.Read(logits, ExpSumFor(BestTarget())));
  EXPECT_NEAR(row.LogProbability(1.0f), -std::log(300.0), 1e-5);
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    logits[299] = bad;
    EXPECT_FALSE(row.Read(logits, ExpSumFor(BestTarget())));
  }
}

}  // namespace
}  // namespace kvasir
