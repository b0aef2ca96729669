#include "schedule/request_counts.h"

#include <algorithm>

namespace kvasir {
namespace {

constexpr uint64_t kNsOfSecond = 1'000'000'000;

double Seconds(uint64_t ns) { return static_cast<double>(ns) * 1e-9; }

// Counts a request that finished as asked.
void CountFinished(const Request& request, uint64_t now_ns, EngineStats& stats) {
  RequestStats& sums = stats.requests;
  ++stats.requests_finished;
  const uint64_t first_ns =
      request.times.first_token_ns == 0 ? now_ns : request.times.first_token_ns;
  const uint64_t queue_ns = request.times.admitted_ns - request.times.submitted_ns;
  stats.ttft_ns_sum += first_ns - request.times.submitted_ns;
  stats.queue_ns_sum += queue_ns;
  stats.queue_seconds.Observe(Seconds(queue_ns));
  stats.request_seconds.Observe(Seconds(now_ns - request.times.submitted_ns));
  stats.prompt_lengths.Observe(request.prompt_tokens());
  stats.answer_lengths.Observe(request.answer.completion_tokens);
  sums.computed_tokens.Observe(request.receipt.computed);
  sums.max_tokens.Observe(request.max_tokens);
  sums.choices.Observe(request.spec.n);
  sums.preemptions.Observe(request.receipt.preemptions);
  if (request.times.first_token_ns == 0) return;  // no token was asked for
  stats.ttft_seconds.Observe(Seconds(first_ns - request.times.submitted_ns));
  sums.prefill_seconds.Observe(Seconds(first_ns - request.times.admitted_ns));
  sums.decode_seconds.Observe(Seconds(request.times.last_token_ns - first_ns));
  sums.inference_seconds.Observe(Seconds(request.times.last_token_ns - request.times.admitted_ns));
  if (request.answer.longest > 1) sums.tpot_seconds.Observe(request.receipt.tpot_ms * 1e-3);
  for (size_t i = 0; i < kNumFirstTokenParts; ++i) {
    const auto part = static_cast<FirstTokenPart>(i);
    sums.first_token_parts[i].Observe(Seconds(request.times.parts.part_ns(part)));
  }
  if (const auto estimate_ms = request.receipt.estimate_ms; estimate_ms && *estimate_ms > 0) {
    sums.ttft_ratio.Observe(request.receipt.ttft_ms / *estimate_ms);
  }
}

}  // namespace

void RecentReads::Add(uint64_t now_ns, uint64_t step_ns, uint64_t read_bytes) {
  const uint64_t number = now_ns / kNsOfSecond;
  Second& second = ring_[number % kSeconds];
  if (second.number != number) second = {.number = number};
  second.read_bytes += read_bytes - read_bytes_;
  second.step_ns += step_ns;
  read_bytes_ = read_bytes;
  last_ns_ = now_ns;
}

void RecentReads::Fill(RequestStats& stats) const {
  stats.recent_read_bytes = stats.recent_step_ns = 0;
  stats.recent_end_ns = last_ns_;
  const uint64_t now = last_ns_ / kNsOfSecond;
  for (const Second& second : ring_) {
    if (second.number + kSeconds <= now) continue;
    stats.recent_read_bytes += second.read_bytes;
    stats.recent_step_ns += second.step_ns;
  }
}

void CountStepRows(uint32_t num_rows, uint64_t step_ns, double predicted_ns, EngineStats& stats) {
  stats.requests.step_tokens.Observe(num_rows);
  if (predicted_ns > 0) {
    stats.requests.step_ratio.Observe(static_cast<double>(step_ns) / predicted_ns);
  }
}

void CountTokenParts(uint64_t gap_ns, const StepTimes& times, EngineStats& stats) {
  const auto add = [&](TokenPart part, uint64_t ns) {
    const uint64_t taken = std::min(ns, gap_ns);
    stats.requests.token_part_ns[static_cast<size_t>(part)] += static_cast<double>(taken);
    gap_ns -= taken;
  };
  add(TokenPart::kCompute, times.compute_ns);
  add(TokenPart::kCache, stats.cache_ns - times.cache_before_ns);
  add(TokenPart::kSample, times.sample_ns);
  add(TokenPart::kWait, gap_ns);
}

void CountChoice(uint32_t num_tokens, FinishReason reason, uint32_t ctx_size, EngineStats& stats) {
  RequestStats& sums = stats.requests;
  sums.stopped += reason == FinishReason::kStop;
  sums.cut += reason == FinishReason::kLength;
  sums.aborted += reason == FinishReason::kCancelled;
  sums.failed += reason == FinishReason::kError;
  if (num_tokens == 0) return;
  sums.sequence_tokens.Observe(num_tokens);
  if (ctx_size > 0) sums.context_ratios.Observe(static_cast<double>(num_tokens) / ctx_size);
}

void CountRequest(const Request& request, FinishReason reason, uint64_t now_ns,
                  EngineStats& stats) {
  TenantStats& tenant = stats.tenants[request.tenant];
  ++tenant.requests;
  tenant.generated_tokens += request.answer.completion_tokens;
  const uint64_t admitted_ns = request.times.admitted_ns == 0 ? now_ns : request.times.admitted_ns;
  tenant.queue_ns += static_cast<double>(admitted_ns - request.times.submitted_ns);
  if (request.times.admitted_ns != 0) {
    tenant.prompt_tokens += request.receipt.prompt_tokens;
    tenant.computed_tokens += request.receipt.computed;
    stats.requests.saved_ms += request.receipt.saved_ms;
  }
  if (request.times.past_deadline) {
    ++stats.requests_past_deadline;
  } else if (reason == FinishReason::kCancelled) {
    ++stats.requests_cancelled;
  } else if (reason == FinishReason::kError) {
    ++stats.requests_failed;
  } else {
    CountFinished(request, now_ns, stats);
  }
}

void FillFirstTokenParts(const FirstTokenTime& time, Receipt& receipt) {
  const auto ms = [&](FirstTokenPart part) {
    return static_cast<double>(time.part_ns(part)) * 1e-6;
  };
  receipt.queue_ms = ms(FirstTokenPart::kQueue);
  receipt.shared_ms = ms(FirstTokenPart::kShared);
  receipt.cache_ms = ms(FirstTokenPart::kCache);
  receipt.load_ms = ms(FirstTokenPart::kLoad);
  receipt.compute_ms = ms(FirstTokenPart::kCompute);
}

}  // namespace kvasir
