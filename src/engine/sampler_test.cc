#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/random.h"
#include "engine/logit_scan.h"
#include "simd/math.h"

namespace kvasir {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// The formulas of sampler.h in the plainest form: weights of all tokens, zero where cut.
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
  for (const size_t id : order) {
    weights[id] = std::exp((double{logits[id]} - logits[order[0]]) / params.temperature);
    total += weights[id];
  }
  double sum = 0;
  for (const size_t id : order) {
    const bool beyond = params.top_p < 1 && sum > 0 && sum >= double{params.top_p} * total;
    sum += weights[id];
    if (beyond || weights[id] < params.min_p * weights[order[0]]) weights[id] = 0;
  }
  return weights;
}

std::vector<float> RandomLogits(uint32_t vocab, Random& random) {
  std::vector<float> logits(vocab);
  for (float& logit : logits) logit = static_cast<float>(random.Uniform() * 8 - 4);
  return logits;
}

TEST(Sampler, DrawsFromTheDistributionOfTheFormulas) {
  constexpr uint32_t kVocab = 24;
  constexpr int kDraws = 40000;
  Random random(11);
  Sampler sampler(kVocab);
  for (int round = 0; round < 24; ++round) {
    const std::vector<float> logits = RandomLogits(kVocab, random);
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
    const std::vector<double> weights = ReferenceWeights(logits, params, tokens, 4);
    double total = 0;
    for (const double weight : weights) total += weight;
    std::vector<int> drawn(kVocab);
    for (int i = 0; i < kDraws; ++i) {
      ++drawn[*sampler.Sample(logits, params, tokens, 4, DrawUniform(round, 0, i))];
    }
    for (uint32_t id = 0; id < kVocab; ++id) {
      const double p = weights[id] / total;
      if (p == 0) {
        EXPECT_EQ(drawn[id], 0) << "round " << round << " token " << id << " was cut";
      }
      // Five deviations of a binomial, and a little for tiny p.
      EXPECT_NEAR(drawn[id], p * kDraws, 5 * std::sqrt(p * (1 - p) * kDraws) + 1) << round;
    }
  }
}

// The definition in sampler.h, step by step over the whole vocabulary: what Sampler must equal.
class PlainSampler {
 public:
  static std::optional<TokenId> Sample(std::vector<float> logits, const SamplingParams& params,
                                       const std::vector<TokenId>& tokens, uint32_t prompt_tokens,
                                       double u) {
    for (const float logit : logits) {
      if (!std::isfinite(logit)) return std::nullopt;
    }
    Adjust(logits, params, tokens, prompt_tokens);
    const float max = *std::max_element(logits.begin(), logits.end());
    if (params.temperature == 0 || !std::isfinite(max)) {
      return static_cast<TokenId>(std::find(logits.begin(), logits.end(), max) - logits.begin());
    }
    std::vector<Candidate> sorted;
    double total = 0;
    for (size_t i = 0; i < logits.size(); ++i) {
      sorted.push_back({Exp((double{logits[i]} - max) / params.temperature), TokenId(i)});
      total += sorted.back().weight;
    }
    std::stable_sort(sorted.begin(), sorted.end(),
                     [](const auto& a, const auto& b) { return a.weight > b.weight; });
    if (params.top_k > 0 && params.top_k < sorted.size()) {
      sorted.resize(params.top_k);
      total = 0;
      for (const Candidate& candidate : sorted) total += candidate.weight;
    }
    if (params.top_p < 1 || params.min_p > 0) {
      size_t kept = 0;
      double sum = 0;
      while (kept < sorted.size() &&
             (kept == 0 || params.top_p == 1 || sum < params.top_p * total) &&
             !(kept > 0 && sorted[kept].weight < params.min_p * sorted[0].weight)) {
        sum += sorted[kept++].weight;
      }
      sorted.resize(kept);
      total = sum;
    }
    double running = 0;
    for (const Candidate& candidate : sorted) {
      running += candidate.weight;
      if (running > u * total) return candidate.id;
    }
    return sorted[0].id;
  }

  static void Logprobs(const std::vector<float>& logits, uint32_t num_top, GeneratedToken* token) {
    const double max = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const float logit : logits) sum += Exp(logit - max);
    const double log_sum = max + Log(sum);
    std::vector<TokenId> order(logits.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<TokenId>(i);
    std::stable_sort(order.begin(), order.end(),
                     [&](TokenId a, TokenId b) { return logits[a] > logits[b]; });
    token->logprob = static_cast<float>(logits[token->id] - log_sum);
    for (size_t i = 0; i < std::min<size_t>(num_top, order.size()); ++i) {
      token->top.push_back({order[i], static_cast<float>(logits[order[i]] - log_sum)});
    }
  }

 private:
  static void Adjust(std::vector<float>& logits, const SamplingParams& params,
                     const std::vector<TokenId>& tokens, uint32_t prompt_tokens) {
    for (const auto& [id, bias] : params.logit_bias) logits[id] += bias;
    std::vector<uint32_t> all(logits.size()), answer(logits.size());
    for (size_t i = 0; i < tokens.size(); ++i) {
      ++all[tokens[i]];
      if (i >= prompt_tokens) ++answer[tokens[i]];
    }
    for (size_t id = 0; id < logits.size(); ++id) {
      float& logit = logits[id];
      if (all[id] > 0) {
        logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
      }
      if (answer[id] > 0) {
        logit -=
            params.presence_penalty + params.frequency_penalty * static_cast<float>(answer[id]);
      }
    }
  }
};

// Rows of every shape that a fast way could take for another: peaks, plains, ties, huge numbers.
std::vector<float> LogitsOfShape(uint32_t shape, uint32_t vocab, Random& random) {
  std::vector<float> logits(vocab);
  const double width = 0.1 + 5 * random.Uniform();
  for (float& logit : logits) {
    double normal = -6;
    for (int i = 0; i < 12; ++i) normal += random.Uniform();
    double x = normal * width;
    if (shape == 1) x = std::floor(x);            // many ties
    if (shape == 2) x = 3;                        // nothing but ties
    if (shape == 3) x = random.Uniform() * 1e-6;  // flat
    if (shape == 4) x = normal * 1e30;            // only the largest counts
    if (shape == 5) x = random.Below(50) == 0 ? normal : -300;
    if (shape == 6) x = random.Below(2) == 0 ? 0.0 : -0.0;
    if (shape == 7) x = 100 + normal * 1e-5;  // neighbours among floats
    logit = static_cast<float>(x);
  }
  for (uint64_t peaks = random.Below(4); shape == 0 && peaks > 0; --peaks) {
    logits[random.Below(vocab)] += static_cast<float>(10 * random.Uniform());
  }
  return logits;
}

SamplingParams RandomParams(uint32_t vocab, Random& random) {
  SamplingParams params;
  const float temperatures[] = {0, 1e-30f, 1e-7f, 0.01f, 0.3f, 0.7f, 1, 1.3f, 3, 100};
  params.temperature = temperatures[random.Below(10)];
  const uint32_t limits[] = {0, 0, 1, 2, 40, 100, vocab / 2, vocab, vocab + 7};
  params.top_k = limits[random.Below(9)];
  const float shares[] = {1, 1, 0, 0.1f, 0.5f, 0.95f, 0.9999f};
  params.top_p = shares[random.Below(7)];
  const float floors[] = {0, 0, 0.001f, 0.05f, 1};
  params.min_p = floors[random.Below(5)];
  if (random.Below(3) == 0) {
    params.repetition_penalty = 0.5f + static_cast<float>(random.Uniform());
    params.presence_penalty = 0.5f;
    params.frequency_penalty = static_cast<float>(random.Uniform()) - 0.5f;
  }
  if (random.Below(4) == 0) {
    params.logit_bias = {{static_cast<TokenId>(random.Below(vocab)), 100.0f},
                         {static_cast<TokenId>(random.Below(vocab)), -100.0f}};
  }
  return params;
}

TEST(Sampler, IsTokenForTokenThePlainDefinition) {
  Random random(29);
  for (const uint32_t vocab : {1u, 2u, 100u, 128u, 1025u, 4096u, 4097u, 9000u, 33000u}) {
    Sampler sampler(vocab);
    const int rounds = vocab > 4096 ? 40 : 150;
    for (int round = 0; round < rounds; ++round) {
      const uint32_t shape = static_cast<uint32_t>(random.Below(8));
      const std::vector<float> logits = LogitsOfShape(shape, vocab, random);
      const SamplingParams params = RandomParams(vocab, random);
      std::vector<TokenId> tokens(random.Below(40));
      for (TokenId& id : tokens) id = static_cast<TokenId>(random.Below(std::min(vocab, 20u)));
      const auto prompt = static_cast<uint32_t>(random.Below(tokens.size() + 1));
      const double draws[] = {random.Uniform(), random.Uniform(), 0, 1 - 0x1p-53, 1e-9};
      for (const double u : draws) {
        ASSERT_EQ(sampler.Sample(logits, params, tokens, prompt, u),
                  PlainSampler::Sample(logits, params, tokens, prompt, u))
            << "vocab " << vocab << " shape " << shape << " temperature " << params.temperature
            << " top_k " << params.top_k << " top_p " << params.top_p << " min_p " << params.min_p
            << " u " << u;
        if (vocab > 4096) break;  // the plain way sorts all
      }
      GeneratedToken fast{.id = static_cast<TokenId>(random.Below(vocab)), .text = ""};
      GeneratedToken plain{.id = fast.id, .text = ""};
      const auto num_top = static_cast<uint32_t>(random.Below(21));
      sampler.Logprobs(logits, num_top, &fast);
      PlainSampler::Logprobs(logits, num_top, &plain);
      ASSERT_EQ(fast.logprob, plain.logprob) << "vocab " << vocab << " shape " << shape;
      ASSERT_EQ(fast.top.size(), plain.top.size());
      for (size_t i = 0; i < fast.top.size(); ++i) {
        ASSERT_EQ(fast.top[i].id, plain.top[i].id) << "vocab " << vocab << " shape " << shape;
        ASSERT_EQ(fast.top[i].logprob, plain.top[i].logprob) << "shape " << shape;
      }
    }
  }
}

// A draw that lies on a token's edge within the bounds of the quick sum must be told exactly.
TEST(Sampler, DrawsAtTheEdgesOfTokensAreThoseOfThePlainDefinition) {
  Random random(31);
  constexpr uint32_t kVocab = 6000;
  Sampler sampler(kVocab);
  SamplingParams params;
  for (int round = 0; round < 8; ++round) {
    const std::vector<float> logits = LogitsOfShape(0, kVocab, random);
    std::vector<float> sorted = logits;
    std::sort(sorted.rbegin(), sorted.rend());
    double total = 0, running = 0;
    for (const float logit : logits) total += Exp(double{logit} - sorted[0]);
    for (int place = 0; place < 12; ++place) {
      running += Exp(double{sorted[place]} - sorted[0]);
      for (const double off : {-1e-7, -1e-12, 0.0, 1e-12, 1e-7}) {
        const double u = std::clamp(running / total + off, 0.0, 1 - 0x1p-53);
        ASSERT_EQ(sampler.Sample(logits, params, {}, 0, u),
                  PlainSampler::Sample(logits, params, {}, 0, u))
            << "place " << place << " off " << off;
      }
    }
  }
}

TEST(LogitScan, SumsLieInTheirBounds) {
  Random random(37);
  for (const uint32_t vocab : {1u, 127u, 128u, 5000u}) {
    std::vector<float> block_max(LogitBlocks(vocab));
    std::vector<double> weights(vocab);
    for (int round = 0; round < 200; ++round) {
      const std::vector<float> logits =
          LogitsOfShape(static_cast<uint32_t>(random.Below(8)), vocab, random);
      MaxOfBlocks(logits, block_max.data());
      const float max = *std::max_element(block_max.begin(), block_max.end());
      ASSERT_EQ(max, *std::max_element(logits.begin(), logits.end()));
      for (const float temperature : {1e-9f, 0.05f, 0.8f, 1.0f, 2.5f, 100.0f}) {
        const double exact = ExpWeights(logits, max, temperature, weights.data());
        double sum = 0;
        for (uint32_t i = 0; i < vocab; ++i) {
          ASSERT_EQ(weights[i], Exp((double{logits[i]} - max) / temperature));
          sum += weights[i];
        }
        ASSERT_EQ(sum, exact);
        const Interval quick = QuickExpSum(logits, block_max.data(), max, temperature);
        ASSERT_LE(quick.low, exact);
        ASSERT_GE(quick.high, exact);
        ASSERT_LE(quick.high - quick.low, 2.1e-6 * exact);
        const Interval close = CloseExpSum(logits, block_max.data(), max, temperature);
        ASSERT_LE(close.low, exact);
        ASSERT_GE(close.high, exact);
        ASSERT_LE(close.high - close.low, 3e-10 * exact);
      }
    }
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

TEST(Sampler, AllocatesWhatItPlans) { EXPECT_EQ(Sampler(1000).bytes(), Sampler::BytesFor(1000)); }

TEST(ValidateSampling, NamesTheFieldThatIsWrong) {
  const auto refuses = [](const SamplingParams& params, const char* field) {
    const Status status = ValidateSampling(params, 100);
    ASSERT_FALSE(status) << field;
    EXPECT_EQ(status.error().code, Code::kInvalidArgument);
    EXPECT_TRUE(status.error().message.starts_with(field)) << status.error().message;
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
  refuses({.logit_bias = {{100, 0}}}, "logit_bias");
  refuses({.logit_bias = {{-1, 0}}}, "logit_bias");
  refuses({.logit_bias = {{1, 101}}}, "logit_bias");
}

}  // namespace
}  // namespace kvasir
