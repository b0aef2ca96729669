#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/result.h"
#include "simd/math.h"

namespace kvasir {
namespace {

Status InRange(const char* field, float value, float low, float high) {
  if (value >= low && value <= high) return {};  // false for NaN
  return Fail(Code::kInvalidArgument, "{}: {} is not in [{}, {}]", field, value, low, high);
}

}  // namespace

Status ValidateSampling(const SamplingParams& params, uint32_t vocab_size) {
  KV_TRY(InRange("temperature", params.temperature, 0, 100));
  KV_TRY(InRange("top_p", params.top_p, 0, 1));
  KV_TRY(InRange("min_p", params.min_p, 0, 1));
  KV_TRY(InRange("repetition_penalty", params.repetition_penalty, 0.01f, 100));
  KV_TRY(InRange("presence_penalty", params.presence_penalty, -2, 2));
  KV_TRY(InRange("frequency_penalty", params.frequency_penalty, -2, 2));
  for (const auto& [id, bias] : params.logit_bias) {
    if (id < 0 || static_cast<uint32_t>(id) >= vocab_size) {
      return Fail(Code::kInvalidArgument, "logit_bias: token {} is outside the vocabulary [0, {})",
                  id, vocab_size);
    }
    KV_TRY(InRange("logit_bias", bias, -100, 100));
  }
  return {};
}

Sampler::Sampler(uint32_t vocab_size)
    : logits_(vocab_size), counts_(vocab_size), heap_(vocab_size) {}

uint64_t Sampler::BytesFor(uint32_t vocab_size) {
  return uint64_t{vocab_size} * (sizeof(float) + sizeof(uint32_t) + sizeof(Candidate));
}

uint64_t Sampler::bytes() const {
  return logits_.capacity() * sizeof(float) + counts_.capacity() * sizeof(uint32_t) +
         heap_.capacity() * sizeof(Candidate);
}

bool Sampler::Worse(const Candidate& a, const Candidate& b) {
  return a.weight != b.weight ? a.weight < b.weight : a.id > b.id;
}

std::optional<TokenId> Sampler::Sample(std::span<const float> logits, const SamplingParams& params,
                                       std::span<const TokenId> tokens, uint32_t prompt_tokens,
                                       double u) {
  KV_DCHECK(logits.size() == logits_.size());
  for (const float logit : logits) {
    if (!std::isfinite(logit)) return std::nullopt;
  }
  std::copy(logits.begin(), logits.end(), logits_.begin());
  Adjust(params, tokens, prompt_tokens);
  const auto best = std::max_element(logits_.begin(), logits_.end());  // the first among equals
  if (params.temperature == 0) return static_cast<TokenId>(best - logits_.begin());
  return Draw(params, *best, u);
}

void Sampler::Adjust(const SamplingParams& params, std::span<const TokenId> tokens,
                     uint32_t prompt_tokens) {
  for (const auto& [id, bias] : params.logit_bias) logits_[id] += bias;
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

TokenId Sampler::Draw(const SamplingParams& params, float max, double u) {
  double total = 0;
  for (size_t i = 0; i < logits_.size(); ++i) {
    const double weight = Exp((double{logits_[i]} - max) / params.temperature);
    heap_[i] = {weight, static_cast<TokenId>(i)};
    total += weight;
  }
  // Best first, as many as are asked for: popping k of V costs O(V + k log V).
  std::make_heap(heap_.begin(), heap_.end(), Worse);
  const size_t limit =
      params.top_k == 0 ? heap_.size() : std::min<size_t>(params.top_k, heap_.size());
  auto end = heap_.end();
  const auto sorted = [&](size_t i) -> const Candidate& { return heap_[heap_.size() - 1 - i]; };
  const auto pop = [&] { std::pop_heap(heap_.begin(), end--, Worse); };
  size_t num_sorted = 0;
  if (limit < heap_.size()) {
    total = 0;
    for (; num_sorted < limit; ++num_sorted) {
      pop();
      total += sorted(num_sorted).weight;
    }
  }
  // What top_p and min_p keep: [0, kept), of weight `sum`.
  size_t kept = 0;
  double sum = 0;
  if (params.top_p < 1.0f || params.min_p > 0) {
    const double enough =
        params.top_p < 1.0f ? params.top_p * total : std::numeric_limits<double>::infinity();
    while (kept < limit && (kept == 0 || sum < enough)) {
      if (kept == num_sorted) {
        pop();
        ++num_sorted;
      }
      if (kept > 0 && sorted(kept).weight < params.min_p * sorted(0).weight) break;
      sum += sorted(kept++).weight;
    }
  } else {
    kept = limit;
    sum = total;
  }
  const double target = u * sum;
  double running = 0;
  for (size_t i = 0; i < kept; ++i) {
    if (i == num_sorted) {
      pop();
      ++num_sorted;
    }
    running += sorted(i).weight;
    if (running > target) return sorted(i).id;
  }
  return sorted(0).id;  // rounding left target at the very end
}

void Sampler::Logprobs(std::span<const float> logits, uint32_t num_top, GeneratedToken* token) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    sum += Exp(logits[i] - max);
    heap_[i] = {logits[i], static_cast<TokenId>(i)};
  }
  const double log_sum = max + Log(sum);
  const auto logprob = [&](TokenId id) { return static_cast<float>(logits[id] - log_sum); };
  token->logprob = logprob(token->id);
  token->top.clear();
  const size_t num = std::min<size_t>(num_top, logits.size());
  std::partial_sort(heap_.begin(), heap_.begin() + static_cast<ptrdiff_t>(num), heap_.end(),
                    [](const Candidate& a, const Candidate& b) { return Worse(b, a); });
  for (size_t i = 0; i < num; ++i) token->top.push_back({heap_[i].id, logprob(heap_[i].id)});
}

}  // namespace kvasir
