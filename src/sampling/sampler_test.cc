#include "sampling/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "base/random.h"
#include "base/rounds_for_test.h"
#include "kvasir/sampling_ranges.h"

namespace kvasir {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Computes the formulas of sampler.h in the plainest form: weights of all tokens, zero where cut.
std::vector<double> ReferenceWeights(std::vector<float> logits, const SamplingParams& params,
                                     const std::vector<TokenId>& tokens, uint32_t prompt_tokens) {
  for (const auto& [id, bias] : params.logit_bias) logits[id] += bias;
  for (size_t id = 0; id < logits.size(); ++id) {
    const auto is = static_cast<TokenId>(id);
    const auto count = std::count(tokens.begin() + prompt_tokens, tokens.end(), is);
    if (std::count(tokens.begin(), tokens.end(), is) > 0) {
      logits[id] = logits[id] > 0 ? logits[id] / params.repetition_penalty
                                  : logits[id] * params.repetition_penalty;
    }
    if (count > 0) {
      logits[id] -= params.presence_penalty + params.frequency_penalty * static_cast<float>(count);
    }
  }
  std::vector<size_t> order(logits.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  if (params.top_k > 0 && params.top_k < order.size()) order.resize(params.top_k);
  std::vector<double> weights(logits.size());
  double total = 0;
  const float temperature = params.temperature_last ? 1 : params.temperature;
  for (const size_t id : order) {
    weights[id] = std::exp((double{logits[id]} - logits[order[0]]) / temperature);
    total += weights[id];
  }
  double sum = 0;
  for (const size_t id : order) {
    const bool beyond = params.top_p < 1 && sum > 0 && sum >= double{params.top_p} * total;
    sum += weights[id];
    if (beyond || weights[id] < params.min_p * weights[order[0]]) weights[id] = 0;
  }
  for (double& weight : weights) weight = std::pow(weight, temperature / params.temperature);
  return weights;
}

std::vector<float> RandomLogits(uint32_t vocab, Random& random) {
  std::vector<float> logits(vocab);
  for (float& logit : logits) logit = static_cast<float>(random.Uniform() * 8 - 4);
  return logits;
}

TEST(Sampler, DrawsFromTheDistributionOfTheFormulas) {
  constexpr int kDraws = 20000;
  Random random(11);
  for (int round = 0; round < Rounds(32, 8); ++round) {
    const uint32_t vocab = round % 3 == 2 ? 300 : 24;  // three blocks of which one is short, or one
    Sampler sampler(vocab);
    const std::vector<float> logits = RandomLogits(vocab, random);
    const std::vector<TokenId> tokens = {1, 2, 3, 5, 5, 8, 8, 8};
    SamplingParams params;
    params.temperature = 0.4f + static_cast<float>(random.Uniform());
    if (round & 1) params.top_k = 1 + static_cast<uint32_t>(random.Below(30));
    if (round & 2) params.top_p = static_cast<float>(random.Uniform());
    if (round & 4) params.min_p = 0.2f * static_cast<float>(random.Uniform());
    if (round & 8) {
      params.repetition_penalty = 1.3f;
      params.presence_penalty = 0.5f;
      params.frequency_penalty = 0.3f;
      params.logit_bias = {{4, 2.0f}, {9, -100.0f}};
    }
    params.temperature_last = round & 16;
    const std::vector<double> weights = ReferenceWeights(logits, params, tokens, 4);
    double total = 0;
    for (const double weight : weights) total += weight;
    std::vector<int> drawn(vocab);
    for (int i = 0; i < kDraws; ++i) {
      ++drawn[*sampler.Sample(logits, params, tokens, 4, DrawUniform(round, 0, i))];
    }
    for (uint32_t id = 0; id < vocab; ++id) {
      const double p = weights[id] / total;
      if (p == 0) {
        EXPECT_EQ(drawn[id], 0) << "round " << round << " token " << id << " was cut";
      }
      // Five deviations of a binomial, and a little for tiny p.
      EXPECT_NEAR(drawn[id], p * kDraws, 5 * std::sqrt(p * (1 - p) * kDraws) + 1) << round;
    }
  }
}

// A vocabulary of the legal tokens alone has the same distribution.
TEST(Sampler, DrawsFromTheLegalTokensAlone) {
  constexpr int kDraws = 20000;
  Random random(12);
  for (int round = 0; round < 16; ++round) {
    const uint32_t vocab = round % 2 == 0 ? 300 : 70;
    const std::vector<float> logits = RandomLogits(vocab, random);
    std::vector<uint64_t> legal((vocab + 63) / 64);
    std::vector<TokenId> ids;
    std::vector<float> alone;
    for (uint32_t id = 0; id < vocab; ++id) {
      if (random.Below(round < 8 ? 3 : 20) != 0 && id != vocab - 1) continue;
      legal[id / 64] |= uint64_t{1} << (id % 64);
      ids.push_back(static_cast<TokenId>(id));
      alone.push_back(logits[id]);
    }
    SamplingParams params;
    params.temperature = 0.4f + static_cast<float>(random.Uniform());
    if (round & 1) params.top_k = 1 + static_cast<uint32_t>(random.Below(30));
    if (round & 2) params.top_p = static_cast<float>(random.Uniform());
    if (round & 4) params.min_p = 0.2f * static_cast<float>(random.Uniform());
    const std::vector<double> weights = ReferenceWeights(alone, params, {}, 0);
    double total = 0;
    for (const double weight : weights) total += weight;
    Sampler sampler(vocab);
    std::vector<int> drawn(vocab);
    for (int i = 0; i < kDraws; ++i) {
      ++drawn[*sampler.Sample(logits, params, {}, 0, DrawUniform(round, 1, i), legal)];
    }
    int of_legal = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
      const double p = weights[i] / total;
      of_legal += drawn[ids[i]];
      EXPECT_NEAR(drawn[ids[i]], p * kDraws, 5 * std::sqrt(p * (1 - p) * kDraws) + 1) << round;
    }
    EXPECT_EQ(of_legal, kDraws);
    params.temperature = 0;
    const size_t best =
        static_cast<size_t>(std::max_element(alone.begin(), alone.end()) - alone.begin());
    EXPECT_EQ(sampler.Sample(logits, params, {}, 0, 0.5, legal), ids[best]);
    // Where all are legal, nothing changes.
    const std::vector<uint64_t> all(legal.size(), ~uint64_t{0});
    params.temperature = 1;
    EXPECT_EQ(sampler.Sample(logits, params, {}, 0, 0.3, all),
              sampler.Sample(logits, params, {}, 0, 0.3));
  }
}

TEST(Sampler, TemperatureZeroTakesTheLargestAndTheLowestIdAmongEquals) {
  Sampler sampler(5);
  SamplingParams params;
  params.temperature = 0;
  EXPECT_EQ(sampler.Sample({{1, 3, 2, 3, 0}}, params, {}, 0, 0.9), 1);
  params.logit_bias = {{1, -1.0f}};
  EXPECT_EQ(sampler.Sample({{1, 3, 2, 3, 0}}, params, {}, 0, 0.9), 3);
}

TEST(Sampler, PenaltiesReadThePromptOnlyForRepetition) {
  Sampler sampler(3);
  SamplingParams params;
  params.temperature = 0;
  const std::vector<float> logits = {2.0f, 1.5f, -1.0f};
  const std::vector<TokenId> tokens = {0};
  params.presence_penalty = 2;
  EXPECT_EQ(sampler.Sample(logits, params, tokens, 1, 0), 0);
  EXPECT_EQ(sampler.Sample(logits, params, tokens, 0, 0), 1);
  params.presence_penalty = 0;
  params.repetition_penalty = 2;
  EXPECT_EQ(sampler.Sample(logits, params, tokens, 1, 0), 1);
  params.repetition_penalty = 1;
  params.frequency_penalty = 0.3f;
  EXPECT_EQ(sampler.Sample(logits, params, {{0}}, 0, 0), 0);
  EXPECT_EQ(sampler.Sample(logits, params, {{0, 0}}, 0, 0), 1);
}

TEST(Sampler, ExtremesKeepOneToken) {
  Sampler sampler(4);
  SamplingParams params;
  const std::vector<float> logits = {0, 5, 5, 1};
  for (const double u : {0.0, 0.5, 1 - 0x1p-53}) {
    params = {.top_k = 1};
    EXPECT_EQ(sampler.Sample(logits, params, {}, 0, u), 1);
    params = {.top_p = 0};
    EXPECT_EQ(sampler.Sample(logits, params, {}, 0, u), 1);
    params = {.temperature = 1e-30f, .top_k = 1};
    EXPECT_EQ(sampler.Sample(logits, params, {}, 0, u), 1);
    params = {.min_p = 1};
    EXPECT_TRUE(sampler.Sample(logits, params, {}, 0, u) == 1 ||
                sampler.Sample(logits, params, {}, 0, u) == 2);
  }
  EXPECT_EQ(sampler.Sample({{0, kNan, 0, 0}}, params, {}, 0, 0), std::nullopt);
  EXPECT_EQ(sampler.Sample({{0, kInf, 0, 0}}, params, {}, 0, 0), std::nullopt);
}

TEST(Sampler, LogprobsAreTheLogSoftmaxOfTheRawLogits) {
  Random random(3);
  const std::vector<float> logits = RandomLogits(50, random);
  Sampler sampler(50);
  GeneratedToken token{.id = 17, .text = ""};
  sampler.Logprobs(logits, 7, &token);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit});
  EXPECT_NEAR(token.logprob, logits[17] - std::log(sum), 1e-6);
  ASSERT_EQ(token.top.size(), 7u);
  std::vector<float> sorted = logits;
  std::sort(sorted.rbegin(), sorted.rend());
  for (size_t i = 0; i < 7; ++i) {
    EXPECT_EQ(logits[token.top[i].id], sorted[i]);
    EXPECT_NEAR(token.top[i].logprob, sorted[i] - std::log(sum), 1e-6);
  }
}

// With a window the penalties see the last tokens alone, whether they are of the prompt or not.
TEST(Sampler, PenaltiesCoverTheWindow) {
  Sampler sampler(8);
  const std::vector<float> logits = {0, 0, 0, 0, 0, 0.5f, 0, 0};
  const std::vector<TokenId> tokens = {5, 5, 1, 2};  // prompt: 5 5 1
  const auto best = [&](SamplingParams params) {
    params.temperature = 0;
    return *sampler.Sample(logits, params, tokens, 3, 0);
  };
  EXPECT_EQ(best({.presence_penalty = 1}), 5);  // of the answer
  EXPECT_EQ(best({.presence_penalty = 1, .penalty_last_n = 4}), 0);
  EXPECT_EQ(best({.frequency_penalty = 0.3f, .penalty_last_n = 3}), 5);  // once in the window
  EXPECT_EQ(best({.frequency_penalty = 0.3f, .penalty_last_n = 4}), 0);
  EXPECT_EQ(best({.repetition_penalty = 100, .penalty_last_n = 2}), 5);
  EXPECT_EQ(best({.presence_penalty = 1, .penalty_last_n = 0}), 5);
  EXPECT_EQ(best({.presence_penalty = 1, .penalty_last_n = 1000}), 0);
}

TEST(Sampler, AForbiddenTokenIsNeverDrawn) {
  Sampler sampler(2);
  SamplingParams params;
  params.temperature = 100;
  params.logit_bias = {{0, kForbidden}};
  ASSERT_TRUE(ValidateSampling(params, 2));
  const std::vector<float> logits = {50, -50};
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(sampler.Sample(logits, params, {}, 0, DrawUniform(1, 0, i)), 1);
  }
}

TEST(Sampler, SampledLogprobsAreTheWeightsOfTheFormulas) {
  Random random(13);
  for (int round = 0; round < 32; ++round) {
    const uint32_t vocab = round % 2 == 0 ? 300 : 24;
    Sampler sampler(vocab);
    const std::vector<float> logits = RandomLogits(vocab, random);
    const std::vector<TokenId> tokens = {1, 2, 3, 5, 5, 8, 8, 8};
    SamplingParams params;
    params.temperature = 0.4f + static_cast<float>(random.Uniform());
    if (round & 2) params.top_k = 1 + static_cast<uint32_t>(random.Below(30));
    if (round & 4) params.top_p = 0.1f + 0.9f * static_cast<float>(random.Uniform());
    if (round & 8) params.min_p = 0.2f * static_cast<float>(random.Uniform());
    if (round & 16) params.presence_penalty = 0.5f;
    params.temperature_last = round & 1;
    const std::vector<double> weights = ReferenceWeights(logits, params, tokens, 4);
    double total = 0;
    for (const double weight : weights) total += weight;
    std::vector<double> seen(vocab);
    GeneratedToken token{.id = static_cast<TokenId>(round % vocab)};
    sampler.SampledLogprobs(logits, params, tokens, 4, vocab, &token);
    for (const TokenLogprob& other : token.top) seen[other.id] = std::exp(other.logprob);
    for (uint32_t id = 0; id < vocab; ++id) EXPECT_NEAR(seen[id], weights[id] / total, 1e-5);
    EXPECT_NEAR(std::exp(token.logprob), weights[token.id] / total, 1e-5);
    for (size_t i = 1; i < token.top.size(); ++i) {
      EXPECT_GE(token.top[i - 1].logprob, token.top[i].logprob);
    }
    sampler.SampledLogprobs(logits, params, tokens, 4, 2, &token);
    EXPECT_LE(token.top.size(), 2u);
  }
}

// top_k leaves 10 of 24 tokens; the texts "a", "b", ... do not begin each other.
TEST(Sampler, InfillKeepsWhatItsCutKeeps) {
  Random random(19);
  Sampler sampler(24);
  std::vector<std::string> texts;
  for (char c = 'a'; c < 'a' + 24; ++c) texts.emplace_back(1, c);
  const InfillWords words{
      .text = [&](TokenId id) { return std::string_view(texts[static_cast<size_t>(id)]); },
      .ends = [](TokenId id) { return id == 23; },
      .end = 23};
  for (int round = 0; round < 200; ++round) {
    const std::vector<float> logits = RandomLogits(24, random);
    SamplingParams params{.top_k = 10, .infill = true};
    params.temperature_last = round & 1;
    params.temperature = round & 2 ? 0.5f : 1;
    if (round % 7 == 0 && params.temperature_last) params.temperature = 0;
    SamplingParams before = params;
    before.infill = before.temperature_last = false;
    before.temperature = params.temperature_last ? 1 : params.temperature;
    const std::vector<double> weights = ReferenceWeights(logits, before, {}, 0);
    std::vector<Candidate> candidates;
    for (TokenId id = 0; id < 24; ++id) {
      if (weights[static_cast<size_t>(id)] > 0) {
        candidates.push_back({weights[static_cast<size_t>(id)], id});
      }
    }
    std::ranges::sort(candidates, std::greater<>(), &Candidate::weight);
    candidates.resize(CutForInfill(candidates, words));
    std::vector<TokenId> kept;
    for (const Candidate& one : candidates) kept.push_back(one.id);
    std::vector<int> drawn(24);
    for (int i = 0; i < 200; ++i) {
      ++drawn[*sampler.Sample(logits, params, {}, 0, DrawUniform(round, 0, i), {}, &words)];
    }
    for (TokenId id = 0; id < 24; ++id) {
      const bool is_kept = std::ranges::find(kept, id) != kept.end();
      EXPECT_TRUE(drawn[static_cast<size_t>(id)] == 0 || is_kept) << round;
    }
    EXPECT_GT(drawn[static_cast<size_t>(kept[0])], 0) << round;
    GeneratedToken token{.id = kept[0]};
    sampler.SampledLogprobs(logits, params, {}, 0, 24, &token, {}, &words);
    EXPECT_EQ(token.top.size(), params.temperature == 0 ? 1 : kept.size()) << round;
    double sum = 0;
    for (const TokenLogprob& one : token.top) sum += std::exp(one.logprob);
    EXPECT_NEAR(sum, 1, 1e-5);
  }
}

TEST(Sampler, AllocatesWhatItPlans) { EXPECT_EQ(Sampler(1000).bytes(), Sampler::BytesFor(1000)); }

TEST(ValidateSampling, NamesTheFieldThatIsWrong) {
  const auto refuses = [](const SamplingParams& params, const char* field) {
    const Status status = ValidateSampling(params, 100);
    ASSERT_FALSE(status) << field;
    EXPECT_EQ(status.error().code, Code::kInvalidArgument);
    EXPECT_EQ(status.error().field, field);
  };
  EXPECT_TRUE(ValidateSampling({}, 100));
  for (const float bad : {kNan, kInf, -kInf, -0.1f, 100.5f}) {
    refuses({.temperature = bad}, "temperature");
    refuses({.top_p = bad}, "top_p");
    refuses({.min_p = bad}, "min_p");
    refuses({.repetition_penalty = bad}, "repetition_penalty");
  }
  refuses({.repetition_penalty = 0}, "repetition_penalty");
  for (const float bad : {kNan, kInf, -2.1f, 2.1f}) {
    refuses({.presence_penalty = bad}, "presence_penalty");
    refuses({.frequency_penalty = bad}, "frequency_penalty");
  }
  refuses({.infill = true}, "samplers");
  refuses({.top_k = kMaxInfillCandidates + 1, .infill = true}, "samplers");
  refuses({.logit_bias = {{100, 0}}}, "logit_bias");
  refuses({.logit_bias = {{-1, 0}}}, "logit_bias");
  refuses({.logit_bias = {{1, 101}}}, "logit_bias");
}

}  // namespace
}  // namespace kvasir
