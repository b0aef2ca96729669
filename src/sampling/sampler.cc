#include "sampling/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "kvasir/sampling_ranges.h"
#include "sampling/kept_weights.h"
#include "sampling/logit_scan.h"
#include "simd/math.h"

namespace kvasir {
namespace {

// How many candidates are sorted before all logits are weighed.
constexpr uint32_t kMaxCandidates = 4096;

bool Adjusts(const SamplingParams& params) {
  return !params.logit_bias.empty() || params.repetition_penalty != 1.0f ||
         params.presence_penalty != 0 || params.frequency_penalty != 0;
}

// Returns the largest float that is at most x.
float FloatBelow(double x) {
  const auto rounded = static_cast<float>(x);
  if (double{rounded} <= x) return rounded;
  const uint32_t bits = std::bit_cast<uint32_t>(rounded);
  if (rounded == 0) return -std::numeric_limits<float>::denorm_min();
  return std::bit_cast<float>(rounded > 0 ? bits - 1 : bits + 1);
}

// Returns the smallest double above x >= 0.
double DoubleAbove(double x) { return std::bit_cast<double>(std::bit_cast<uint64_t>(x) + 1); }

// Logits at which a weight may be that of `logit`, by the error of Exp too: [low, high].
struct Window {
  float low, high;
};
Window EqualsOf(double logit, float max, float temperature) {
  const double reach = 1e-12 * (std::fabs(logit) + std::fabs(max) + temperature);
  return {FloatBelow(logit - reach), -FloatBelow(-logit - reach)};
}

// Returns whether anything differs from temperature first.
bool IsTemperatureLast(const SamplingParams& params) {
  return params.temperature_last && params.temperature != 1 &&
         (params.top_p < 1 || params.min_p > 0 || params.infill);
}

// Returns the temperature of the weights that the cuts see.
float CutTemperature(const SamplingParams& params) {
  return IsTemperatureLast(params) ? 1 : params.temperature;
}

// Returns whether the largest logit is taken, whatever else is asked for.
bool IsGreedy(const SamplingParams& params) {
  const bool is_cold = params.temperature == 0 && !(params.infill && IsTemperatureLast(params));
  return is_cold || params.top_p == 0;
}

bool HasTopK(const SamplingParams& params, size_t vocab_size) {
  return params.top_k > 0 && params.top_k < vocab_size;
}

}  // namespace

Sampler::Sampler(uint32_t vocab_size)
    : logits_(vocab_size),
      counts_(vocab_size),
      order_(vocab_size),
      draw_(vocab_size),
      block_max_(LogitBlocks(vocab_size)),
      block_order_(LogitBlocks(vocab_size)),
      ids_(std::min(vocab_size, kMaxCandidates)),
      best_(std::min(vocab_size, kMaxCandidates)) {}

uint64_t Sampler::BytesFor(uint32_t vocab_size) {
  const uint64_t candidates = std::min(vocab_size, kMaxCandidates);
  return uint64_t{vocab_size} * (sizeof(float) + sizeof(uint32_t)) +
         WeightOrder::BytesFor(vocab_size) + WeightedDraw::BytesFor(vocab_size) +
         uint64_t{LogitBlocks(vocab_size)} * 2 * sizeof(float) +
         candidates * (sizeof(TokenId) + sizeof(Candidate));
}

uint64_t Sampler::bytes() const {
  return (logits_.capacity() + block_max_.capacity() + block_order_.capacity()) * sizeof(float) +
         counts_.capacity() * sizeof(uint32_t) + order_.bytes() + draw_.bytes() +
         ids_.capacity() * sizeof(TokenId) + best_.capacity() * sizeof(Candidate);
}

void Sampler::Zero() {
  for (std::vector<float>* list : {&logits_, &block_max_, &block_order_}) {
    std::ranges::fill(*list, 0.0f);
  }
  std::ranges::fill(ids_, TokenId{});
  std::ranges::fill(best_, Candidate{});
  order_.Zero();
  draw_.Zero();
}

std::optional<TokenId> Sampler::Sample(std::span<const float> logits, const SamplingParams& params,
                                       std::span<const TokenId> tokens, uint32_t prompt_tokens,
                                       double u, std::span<const uint64_t> legal,
                                       const InfillWords* words) {
  KV_DCHECK(logits.size() == logits_.size());
  if (Adjusts(params)) {
    if (!AllFinite(logits)) return std::nullopt;
    std::copy(logits.begin(), logits.end(), logits_.begin());
    Adjust(params, tokens, prompt_tokens);
    if (!legal.empty()) CopyLegal(logits_, legal, kForbidden, logits_.data());
    logits = logits_;
    MaxOfBlocks(logits, block_max_.data());
  } else if (!legal.empty()) {
    if (!CopyLegal(logits, legal, kForbidden, logits_.data())) return std::nullopt;
    logits = logits_;
    MaxOfBlocks(logits, block_max_.data());
  } else if (!MaxOfBlocks(logits, block_max_.data())) {
    return std::nullopt;
  }
  const float max = *std::max_element(block_max_.begin(), block_max_.end());
  // An adjusted logit may have become infinite; then it wins like the largest.
  if (IsGreedy(params) || !std::isfinite(max)) {
    return Largest(logits, max);
  }
  if (IsTemperatureLast(params) || params.infill) {
    return DrawAfterCuts(logits, params, max, u, words);
  }
  if (!HasTopK(params, logits.size())) return DrawOfAll(logits, params, max, u);
  return DrawOfLargest(logits, params, max, params.top_k, u);
}

TokenId Sampler::Largest(std::span<const float> logits, float max) const {
  const size_t block = static_cast<size_t>(std::find(block_max_.begin(), block_max_.end(), max) -
                                           block_max_.begin());
  const auto begin = logits.begin() + static_cast<ptrdiff_t>(block * kLogitBlock);
  return static_cast<TokenId>(std::find(begin, logits.end(), max) - logits.begin());
}

void Sampler::Adjust(const SamplingParams& params, std::span<const TokenId> tokens,
                     uint32_t prompt_tokens) {
  for (const auto& [id, bias] : params.logit_bias) logits_[id] += bias;
  if (params.penalty_last_n) {
    tokens = tokens.last(std::min<size_t>(*params.penalty_last_n, tokens.size()));
    prompt_tokens = 0;
  }
  if (params.repetition_penalty != 1.0f) {
    for (const TokenId id : tokens) {
      if (counts_[id]++ > 0) continue;
      float& logit = logits_[id];
      logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
    }
    for (const TokenId id : tokens) counts_[id] = 0;
  }
  if (params.presence_penalty == 0 && params.frequency_penalty == 0) return;
  const std::span<const TokenId> answer = tokens.subspan(prompt_tokens);
  for (const TokenId id : answer) ++counts_[id];
  for (const TokenId id : answer) {
    if (counts_[id] == 0) continue;
    logits_[id] -=
        params.presence_penalty + params.frequency_penalty * static_cast<float>(counts_[id]);
    counts_[id] = 0;
  }
}

TokenId Sampler::DrawOfAll(std::span<const float> logits, const SamplingParams& params, float max,
                           double u) {
  draw_.Start(logits, block_max_, max, params.temperature, u, params.min_p);
  double least = 2;  // top_p keeps this weight, as far as is known, and does not keep lighter ones
  if (params.top_p == 1.0f) least = 0;
  std::optional<Interval> total;
  while (const auto drawn = draw_.Next()) {
    if (drawn->weight >= least) return drawn->id;
    std::optional<bool> is_kept = IsKept(logits, params, max, *drawn, &total);
    if (!is_kept) {
      least = LeastKept(logits, params, max);
      is_kept = drawn->weight >= least;
    }
    if (*is_kept) return drawn->id;
    draw_.Raise(std::max<double>(DoubleAbove(drawn->weight), params.min_p));
  }
  return Largest(logits, max);
}

std::optional<bool> Sampler::IsKept(std::span<const float> logits, const SamplingParams& params,
                                    float max, const Candidate& candidate,
                                    std::optional<Interval>* total) const {
  if (candidate.weight == 1) return true;
  const float logit = logits[candidate.id];
  const Window equals = EqualsOf(logit, max, params.temperature);
  const bool first = !total->has_value();
  const ExpSums sums = QuickExpSums(logits, block_max_.data(), max, params.temperature, equals.low,
                                    first ? ExpSumsOf::kAllAndPart : ExpSumsOf::kPart);
  if (first) *total = sums.all;
  const double p = params.top_p;
  // The sum of weights above the candidate's, without the candidate and its equals.
  if (sums.part.high - candidate.weight < p * (*total)->low) return true;
  const auto same = static_cast<double>(CountBetween(logits, block_max_.data(), logit, logit));
  if (sums.part.high - same * candidate.weight < p * (*total)->low) return true;
  const auto near =
      static_cast<double>(CountBetween(logits, block_max_.data(), equals.low, equals.high));
  if (sums.part.low - near * candidate.weight >= p * (*total)->high) return false;
  return std::nullopt;
}

double Sampler::LeastKept(std::span<const float> logits, const SamplingParams& params, float max) {
  const double enough = params.top_p * order_.Fill(logits, max, params.temperature);
  // Sums of whole buckets give the place, unless it is too close to an edge.
  if (const auto place = order_.Crossing(enough)) return order_.At(*place).weight;
  double sum = 0, least = 1;
  for (size_t i = 0; i < logits.size() && (i == 0 || sum < enough); ++i) {
    least = order_.At(i).weight;
    sum += least;
  }
  return least;
}

TokenId Sampler::DrawOfLargest(std::span<const float> logits, const SamplingParams& params,
                               float max, size_t limit, double u) {
  // Nine blocks in ten have a logit above the last look's threshold: some thousands in all.
  for (const size_t look : {limit, block_max_.size() * 9 / 10}) {
    if (SortBest(logits, look, max, params.temperature) < limit) continue;
    return best_[DrawFrom([&](size_t i) { return best_[i]; }, limit, params, u)].id;
  }
  order_.Fill(logits, max, params.temperature);
  return order_.At(DrawFrom([&](size_t i) { return order_.At(i); }, limit, params, u)).id;
}

TokenId Sampler::DrawAfterCuts(std::span<const float> logits, const SamplingParams& params,
                               float max, double u, const InfillWords* words) {
  const float temperature = CutTemperature(params);
  const bool has_top_k = HasTopK(params, logits.size());
  const size_t limit = has_top_k ? params.top_k : logits.size();
  const bool is_in_best =
      has_top_k && (SortBest(logits, limit, max, temperature) >= limit ||
                    SortBest(logits, block_max_.size() * 9 / 10, max, temperature) >= limit);
  const double total = is_in_best ? 0 : order_.Fill(logits, max, temperature);
  const auto sorted = [&](size_t i) { return is_in_best ? best_[i] : order_.At(i); };
  KeptWeights kept =
      has_top_k ? KeptOf(sorted, limit, params) : KeptOf(sorted, limit, total, params);
  if (params.infill) {
    for (size_t i = 0; i < kept.count && !is_in_best; ++i) best_[i] = order_.At(i);
    kept.count = CutForInfill(std::span(best_).first(kept.count), *words);
  }
  const auto kept_one = [&](size_t i) { return params.infill ? best_[i] : sorted(i); };
  if (params.temperature == 0) return kept_one(0).id;
  const auto weight = [&](size_t i) {
    return Exp((double{logits[kept_one(i).id]} - max) / params.temperature);
  };
  double sum = 0, running = 0;
  for (size_t i = 0; i < kept.count; ++i) sum += weight(i);
  for (size_t i = 0; i < kept.count; ++i) {
    running += weight(i);
    if (running > u * sum) return kept_one(i).id;
  }
  return kept_one(0).id;
}

size_t Sampler::SortBest(std::span<const float> logits, size_t look, float max, float temperature) {
  KV_DCHECK(look > 0);
  float threshold = -std::numeric_limits<float>::infinity();
  double least = 0;  // the smallest weight below which something may be missing
  if (logits.size() > best_.size()) {
    if (look > block_max_.size()) return 0;
    // So many blocks have a logit this large, so at least as many logits are.
    block_order_ = block_max_;
    const auto at = block_order_.begin() + static_cast<ptrdiff_t>(look - 1);
    std::nth_element(block_order_.begin(), at, block_order_.end(), std::greater<>());
    const double edge = *at;
    least = Exp((edge - max) / temperature);
    // Logits a little smaller may have the same weight, or by an error of Exp a larger one.
    threshold = EqualsOf(edge, max, temperature).low;
  }
  const uint32_t num = CollectAtLeast(logits, block_max_.data(), threshold, ids_.data(),
                                      static_cast<uint32_t>(ids_.size()));
  if (num == ids_.size() && num < logits.size()) return 0;  // more than fit
  size_t known = 0;
  for (uint32_t i = 0; i < num; ++i) {
    const double weight = Exp((double{logits[ids_[i]]} - max) / temperature);
    if (weight >= least) best_[known++] = {weight, ids_[i]};
  }
  std::sort(best_.begin(), best_.begin() + static_cast<ptrdiff_t>(known),
            [](const Candidate& a, const Candidate& b) {
              return a.weight != b.weight ? a.weight > b.weight : a.id < b.id;
            });
  return known;
}

void Sampler::Logprobs(std::span<const float> logits, uint32_t num_top, GeneratedToken* token) {
  MaxOfBlocks(logits, block_max_.data());
  const float max = *std::max_element(block_max_.begin(), block_max_.end());
  const size_t num = SortLargest(logits, std::min<size_t>(num_top, logits.size()));
  const Interval sum = CloseExpSum(logits, block_max_.data(), max, 1);
  // If both bounds of the sum give the same float, so does the sum.
  const double low = max + Log(sum.low), high = max + Log(sum.high);
  const auto same = [&](TokenId id) {
    return static_cast<float>(logits[id] - low) == static_cast<float>(logits[id] - high);
  };
  bool certain = same(token->id);
  for (size_t i = 0; i < num; ++i) certain = certain && same(best_[i].id);
  const double log_sum = certain ? low : max + Log(order_.Fill(logits, max, 1));
  const auto logprob = [&](TokenId id) { return static_cast<float>(logits[id] - log_sum); };
  token->logprob = logprob(token->id);
  token->top.clear();
  for (size_t i = 0; i < num; ++i) token->top.push_back({best_[i].id, logprob(best_[i].id)});
}

void Sampler::SampledLogprobs(std::span<const float> logits, const SamplingParams& params,
                              std::span<const TokenId> tokens, uint32_t prompt_tokens,
                              uint32_t num_top, GeneratedToken* token,
                              std::span<const uint64_t> legal, const InfillWords* words) {
  std::copy(logits.begin(), logits.end(), logits_.begin());
  Adjust(params, tokens, prompt_tokens);
  if (!legal.empty()) CopyLegal(logits_, legal, kForbidden, logits_.data());
  MaxOfBlocks(logits_, block_max_.data());
  const float max = *std::max_element(block_max_.begin(), block_max_.end());
  token->logprob = -std::numeric_limits<float>::infinity();
  token->top.clear();
  const auto add = [&](TokenId id, float logprob) {
    if (id == token->id) token->logprob = logprob;
    if (token->top.size() < num_top) token->top.push_back({id, logprob});
  };
  if (IsGreedy(params) || !std::isfinite(max)) {
    return add(Largest(logits_, max), 0);
  }
  const double total = order_.Fill(logits_, max, CutTemperature(params));
  const auto sorted = [&](size_t i) { return order_.At(i); };
  const bool has_top_k = HasTopK(params, logits_.size());
  KeptWeights kept = has_top_k ? KeptOf(sorted, params.top_k, params)
                               : KeptOf(sorted, logits_.size(), total, params);
  if (params.infill) {
    for (size_t i = 0; i < kept.count; ++i) best_[i] = order_.At(i);
    kept.count = CutForInfill(std::span(best_).first(kept.count), *words);
  }
  if (params.temperature == 0) return add(best_[0].id, 0);
  const auto kept_one = [&](size_t i) {
    Candidate one = params.infill ? best_[i] : order_.At(i);
    if (IsTemperatureLast(params)) {
      one.weight = Exp((double{logits_[one.id]} - max) / params.temperature);
    }
    return one;
  };
  double sum = 0;
  for (size_t i = 0; i < kept.count; ++i) sum += kept_one(i).weight;
  for (size_t i = 0; i < kept.count; ++i) {
    const Candidate candidate = kept_one(i);
    if (candidate.weight == 0) break;
    add(candidate.id, static_cast<float>(Log(candidate.weight / sum)));
  }
}

size_t Sampler::SortLargest(std::span<const float> logits, size_t num) {
  float threshold = -std::numeric_limits<float>::infinity();
  if (num == 0) return 0;
  if (logits.size() > best_.size() && num <= block_max_.size()) {
    block_order_ = block_max_;
    const auto at = block_order_.begin() + static_cast<ptrdiff_t>(num - 1);
    std::nth_element(block_order_.begin(), at, block_order_.end(), std::greater<>());
    threshold = *at;
  }
  const uint32_t found = CollectAtLeast(logits, block_max_.data(), threshold, ids_.data(),
                                        static_cast<uint32_t>(ids_.size()));
  const auto larger = [&](TokenId a, TokenId b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  if (found < ids_.size() || found == logits.size()) {
    std::partial_sort(ids_.begin(), ids_.begin() + static_cast<ptrdiff_t>(num),
                      ids_.begin() + found, larger);
    for (size_t i = 0; i < num; ++i) best_[i] = {logits[ids_[i]], ids_[i]};
    return num;
  }
  // More than fit: uses all, in the memory of counts_.
  std::iota(counts_.begin(), counts_.end(), 0);
  std::partial_sort(counts_.begin(), counts_.begin() + static_cast<ptrdiff_t>(num), counts_.end(),
                    larger);
  for (size_t i = 0; i < num; ++i) {
    const auto id = static_cast<TokenId>(counts_[i]);
    best_[i] = {logits[id], id};
  }
  std::fill(counts_.begin(), counts_.end(), 0);
  return num;
}

}  // namespace kvasir
