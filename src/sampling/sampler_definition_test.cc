// Compares Sampler with a plain form of its definition: each fast way must give the same token.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "base/random.h"
#include "base/rounds_for_test.h"
#include "sampling/logit_scan.h"
#include "sampling/sampler.h"
#include "simd/math.h"

namespace kvasir {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNotANumber = std::numeric_limits<float>::quiet_NaN();

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
      return Largest(logits, max);
    }
    if (params.top_p == 0) return Largest(logits, max);
    if (params.temperature_last && params.temperature != 1 &&
        (params.top_p < 1 || params.min_p > 0)) {
      return TemperatureLast(logits, params, max, u);
    }
    std::vector<double> weights;
    std::vector<Candidate> sorted;
    double total = 0;
    for (size_t i = 0; i < logits.size(); ++i) {
      weights.push_back(Exp((double{logits[i]} - max) / params.temperature));
      sorted.push_back({weights.back(), TokenId(i)});
      total += weights.back();
    }
    std::stable_sort(sorted.begin(), sorted.end(),
                     [](const auto& a, const auto& b) { return a.weight > b.weight; });
    if (params.top_k > 0 && params.top_k < sorted.size()) {
      sorted.resize(params.top_k);
      total = 0;
      for (const Candidate& candidate : sorted) total += candidate.weight;
      const size_t kept = NumKept(sorted, total, params);
      total = 0;
      for (size_t i = 0; i < kept; ++i) total += sorted[i].weight;
      double running = 0;
      for (size_t i = 0; i < kept; ++i) {
        running += sorted[i].weight;
        if (running > u * total) return sorted[i].id;
      }
      return sorted[0].id;
    }
    // Only top_p's edge: min_p is checked at each draw.
    SamplingParams top_p = params;
    top_p.min_p = 0;
    const double edge = sorted[NumKept(sorted, total, top_p) - 1].weight;
    return DrawByRejection(logits, weights, params.min_p, params.top_p < 1 ? edge : 0, u)
        .value_or(Largest(logits, max));
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
  static TokenId TemperatureLast(const std::vector<float>& logits, const SamplingParams& params,
                                 float max, double u) {
    std::vector<Candidate> sorted;
    double total = 0;
    for (size_t i = 0; i < logits.size(); ++i) {
      sorted.push_back({Exp(double{logits[i]} - max), TokenId(i)});
      total += sorted.back().weight;
    }
    std::stable_sort(sorted.begin(), sorted.end(),
                     [](const auto& a, const auto& b) { return a.weight > b.weight; });
    if (params.top_k > 0 && params.top_k < sorted.size()) {
      sorted.resize(params.top_k);
      total = 0;
      for (const Candidate& candidate : sorted) total += candidate.weight;
    }
    sorted.resize(NumKept(sorted, total, params));
    double sum = 0, running = 0;
    for (Candidate& one : sorted) {
      one.weight = Exp((double{logits[static_cast<size_t>(one.id)]} - max) / params.temperature);
      sum += one.weight;
    }
    for (const Candidate& one : sorted) {
      running += one.weight;
      if (running > u * sum) return one.id;
    }
    return sorted[0].id;
  }

  static TokenId Largest(const std::vector<float>& logits, float max) {
    return static_cast<TokenId>(std::find(logits.begin(), logits.end(), max) - logits.begin());
  }

  static size_t NumKept(const std::vector<Candidate>& sorted, double total,
                        const SamplingParams& params) {
    size_t kept = 0;
    double sum = 0;
    for (; kept < sorted.size(); ++kept) {
      const bool beyond = params.top_p < 1 && sum >= params.top_p * total;
      if (kept > 0 && beyond && sorted[kept].weight < sorted[kept - 1].weight) break;
      if (kept > 0 && sorted[kept].weight < params.min_p * sorted[0].weight) break;
      sum += sorted[kept].weight;
    }
    return kept;
  }

  // Draws by the definition in weighted_draw.h; `edge`: the least weight that top_p keeps.
  static std::optional<TokenId> DrawByRejection(const std::vector<float>& logits,
                                                const std::vector<double>& weights, double least,
                                                double edge, double u) {
    std::vector<double> bounds;
    const auto bound_blocks = [&] {
      bounds.clear();
      for (size_t begin = 0; begin < logits.size(); begin += 128) {
        const auto first = logits.begin() + static_cast<ptrdiff_t>(begin);
        const auto last =
            logits.begin() + static_cast<ptrdiff_t>(std::min(begin + 128, logits.size()));
        const double bound =
            weights[static_cast<size_t>(std::max_element(first, last) - logits.begin())];
        bounds.push_back(bound >= least ? bound : 0);
      }
    };
    bound_blocks();
    uint64_t counter = Mix64(std::bit_cast<uint64_t>(u));
    for (uint32_t tries = 0; tries < WeightedDraw::kMaxTries; ++tries) {
      double sum = 0, running = 0;
      for (const double bound : bounds) sum += bound;
      const double place = static_cast<double>(Mix64(counter++) >> 11) * 0x1p-53 * sum;
      const uint64_t bits = Mix64(counter++);
      size_t block = 0;
      while (block < bounds.size() && (running += bounds[block]) <= place) ++block;
      const size_t id = block * 128 + (bits & 127);
      if (block == bounds.size() || id >= weights.size()) continue;
      const double height = static_cast<double>(bits >> 11) * 0x1p-53 * bounds[block];
      if (weights[id] <= height || weights[id] < least) continue;
      if (weights[id] >= edge) return static_cast<TokenId>(id);
      least = std::max(least, std::nextafter(weights[id], 2.0));
      bound_blocks();
    }
    return std::nullopt;
  }

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

// Draws rows of different shapes that could mislead a fast way: peaks, plains, ties, huge numbers.
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
      SamplingParams params = RandomParams(vocab, random);
      params.temperature_last = random.Below(3) == 0;
      std::vector<TokenId> tokens(random.Below(40));
      for (TokenId& id : tokens) id = static_cast<TokenId>(random.Below(std::min(vocab, 20u)));
      const auto prompt = static_cast<uint32_t>(random.Below(tokens.size() + 1));
      const double draws[] = {random.Uniform(), random.Uniform(), 0, 1 - 0x1p-53, 1e-9};
      for (const double u : draws) {
        ASSERT_EQ(sampler.Sample(logits, params, tokens, prompt, u),
                  PlainSampler::Sample(logits, params, tokens, prompt, u))
            << "vocab " << vocab << " shape " << shape << " temperature " << params.temperature
            << (params.temperature_last ? " last" : "") << " top_k " << params.top_k << " top_p "
            << params.top_p << " min_p " << params.min_p << " u " << u;
        if (vocab > 4096) break;  // the plain way sorts all logits, which is slow
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

// The share of the largest tokens differs from top_p by less than the bounds of the quick sums.
// Then exact sums must decide whether the next token is kept.
TEST(Sampler, TopPAtTheEdgesOfTokensIsThatOfThePlainDefinition) {
  Random random(31);
  constexpr uint32_t kVocab = 6000;
  Sampler sampler(kVocab);
  SamplingParams params;
  for (int round = 0; round < Rounds(8, 2); ++round) {
    const std::vector<float> logits = LogitsOfShape(0, kVocab, random);
    std::vector<float> sorted = logits;
    std::sort(sorted.rbegin(), sorted.rend());
    double total = 0, running = 0;
    for (const float logit : logits) total += Exp(double{logit} - sorted[0]);
    for (int place = 0; place < 8; ++place) {
      running += Exp(double{sorted[place]} - sorted[0]);
      for (const double off : {-1e-6, -6e-8, 0.0, 6e-8, 1e-6}) {
        params.top_p = std::min(1.0f, static_cast<float>(running / total + off));
        for (int draw = 0; draw < 4; ++draw) {
          const double u = random.Uniform();
          ASSERT_EQ(sampler.Sample(logits, params, {}, 0, u),
                    PlainSampler::Sample(logits, params, {}, 0, u))
              << "place " << place << " off " << off << " u " << u;
        }
      }
    }
  }
}

// A large vocabulary with flat logits: every token's share is near the error of the sums.
TEST(Sampler, TopPOfAFlatLargeVocabularyIsThatOfThePlainDefinition) {
  Random random(53);
  constexpr uint32_t kVocab = 262144;
  Sampler sampler(kVocab);
  std::vector<float> logits(kVocab);
  for (const double width : {0.0, 1e-6, 0.3}) {
    for (float& logit : logits) logit = static_cast<float>(1 + width * random.Uniform());
    for (const float top_p : {0.1f, 0.5f, 0.9f, 0.99999f}) {
      const SamplingParams params{.top_p = top_p};
      const double u = random.Uniform();
      ASSERT_EQ(sampler.Sample(logits, params, {}, 0, u),
                PlainSampler::Sample(logits, params, {}, 0, u))
          << "width " << width << " top_p " << top_p << " u " << u;
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
        const float threshold = logits[random.Below(vocab)];
        double part = 0;
        for (uint32_t i = 0; i < vocab; ++i) part += logits[i] >= threshold ? weights[i] : 0;
        const auto [quick, quick_part] = QuickExpSums(logits, block_max.data(), max, temperature,
                                                      threshold, ExpSumsOf::kAllAndPart);
        ASSERT_LE(quick_part.low, part);
        ASSERT_GE(quick_part.high, part);
        ASSERT_LE(quick_part.high - quick_part.low, 2.1e-6 * part + 1e-12);
        const auto again =
            QuickExpSums(logits, block_max.data(), max, temperature, threshold, ExpSumsOf::kPart);
        ASSERT_LE(again.part.low, part);
        ASSERT_GE(again.part.high, part);
        ASSERT_EQ(CountBetween(logits, block_max.data(), threshold, max),
                  std::count_if(logits.begin(), logits.end(),
                                [&](float logit) { return logit >= threshold; }));
        ASSERT_LE(quick.low, exact);
        ASSERT_GE(quick.high, exact);
        ASSERT_LE(quick.high - quick.low, 2.1e-6 * exact);
        const Interval close = CloseExpSum(logits, block_max.data(), max, temperature);
        ASSERT_LE(close.low, exact);
        ASSERT_GE(close.high, exact);
        ASSERT_LE(close.high - close.low, 1.3e-10 * exact);
      }
    }
  }
}

TEST(LogitScan, TellsWhatIsNotFinite) {
  Random random(41);
  for (const uint32_t vocab : {5u, 128u, 300u}) {
    std::vector<float> logits = LogitsOfShape(0, vocab, random);
    std::vector<float> block_max(LogitBlocks(vocab));
    EXPECT_TRUE(MaxOfBlocks(logits, block_max.data()));
    for (uint32_t i = 0; i < vocab; ++i) {
      for (const float wrong : {kInfinity, -kInfinity, kNotANumber, -kNotANumber}) {
        const float logit = std::exchange(logits[i], wrong);
        ASSERT_FALSE(MaxOfBlocks(logits, block_max.data())) << i;
        ASSERT_FALSE(AllFinite(logits)) << i;
        logits[i] = logit;
      }
    }
  }
}

// The tokens of fixed seeds, and logprobs to the last bit: docs/numerics.md says that they are the
// same for every compiler and machine. A change of these numbers changes what users' seeds give.
TEST(Sampler, SeedsGiveTheTokensThatTheyGaveBefore) {
  Random random(43);
  uint64_t digest = 0;
  for (const uint32_t vocab : {1000u, 20000u}) {
    Sampler sampler(vocab);
    for (int round = 0; round < 300; ++round) {
      const auto shape = static_cast<uint32_t>(random.Below(8));
      const std::vector<float> logits = LogitsOfShape(shape, vocab, random);
      const SamplingParams params = RandomParams(vocab, random);
      GeneratedToken token{
          .id = *sampler.Sample(logits, params, {{1, 2, 3, 3}}, 2, DrawUniform(7, 0, round)),
          .text = ""};
      sampler.Logprobs(logits, 2, &token);
      digest = Mix64(digest ^ static_cast<uint64_t>(token.id));
      digest = Mix64(digest ^ std::bit_cast<uint32_t>(token.logprob));
      digest = Mix64(digest ^ std::bit_cast<uint32_t>(token.top[1].logprob));
    }
  }
  EXPECT_EQ(digest, 450685754604470690u);
}

}  // namespace
}  // namespace kvasir
