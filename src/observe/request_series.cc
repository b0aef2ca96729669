// Series of requests and steps: where time goes, what is refused, what tenants get.
#include "base/clock.h"
#include "observe/metric_series.h"

namespace kvasir {
namespace {

using Stats = EngineStats;

void WriteOutcomes(const MetricsView& view, SeriesWriter& out) {
  out.Write(view.stats.requests_finished, {"finished"});
  out.Write(view.stats.requests_cancelled, {"cancelled"});
  out.Write(view.stats.requests_failed, {"failed"});
  out.Write(view.stats.requests_past_deadline, {"deadline"});
}

void WritePreemptions(const MetricsView& view, SeriesWriter& out) {
  for (size_t i = 0; i < kNumCountedCauses; ++i) {
    out.Write(view.stats.preemptions[i], {ToString(static_cast<PreemptCause>(i))});
  }
}

void WriteRejected(const MetricsView& view, SeriesWriter& out) {
  for (size_t i = 0; i < kNumRejectReasons; ++i) {
    out.Write(view.stats.requests.rejected[i], {ToString(static_cast<RejectReason>(i))});
  }
}

void WriteFirstTokenParts(const MetricsView& view, SeriesWriter& out) {
  for (size_t i = 0; i < kNumFirstTokenParts; ++i) {
    out.Write(view.stats.requests.first_token_parts[i], {ToString(static_cast<FirstTokenPart>(i))});
  }
}

void WriteTokenParts(const MetricsView& view, SeriesWriter& out) {
  for (size_t i = 0; i < kNumTokenParts; ++i) {
    out.Write(view.stats.requests.token_part_ns[i] * 1e-9, {ToString(static_cast<TokenPart>(i))});
  }
}

void WriteSaved(const MetricsView& view, SeriesWriter& out) {
  out.Write(view.stats.requests.saved_ms * 1e-3);
}

void WriteOldestWait(const MetricsView& view, SeriesWriter& out) {
  const uint64_t since = view.stats.requests.oldest_wait_since_ns;
  const uint64_t now = MonotonicNs();
  out.Write(since == 0 ? 0 : static_cast<double>(now - std::min(now, since)) * 1e-9);
}

void WriteMeanBatch(const MetricsView& view, SeriesWriter& out) {
  out.Write(Ratio(view.stats.decode_rows, view.stats.decode_steps));
}

void WriteEstimates(const MetricsView& view, SeriesWriter& out) {
  out.Write(view.stats.requests.ttft_ratio, {"ttft"});
  out.Write(view.stats.requests.step_ratio, {"step"});
}

// Writes a number of each tenant that has a name.
template <auto kMember>
void OfTenants(const MetricsView& view, SeriesWriter& out) {
  if (!view.by_tenant) return;
  for (const TenantStats& tenant : view.stats.tenants) {
    if (!tenant.name.empty()) out.Write(tenant.*kMember, {tenant.name});
  }
}

// Writes the blocks of each cache: one tenant's, or that of a share group ("group/NAME").
void WriteOwnerBlocks(const MetricsView& view, SeriesWriter& out) {
  if (!view.by_tenant) return;
  for (const CacheOwnerStats& owner : view.stats.cache_owners) {
    out.Write(owner.pinned_blocks, {owner.name, "pinned"});
    out.Write(owner.idle_blocks, {owner.name, "idle"});
    out.Write(owner.reserved_blocks, {owner.name, "reserved"});
  }
}

template <auto kMember>
void SecondsOfTenants(const MetricsView& view, SeriesWriter& out) {
  if (!view.by_tenant) return;
  for (const TenantStats& tenant : view.stats.tenants) {
    if (!tenant.name.empty()) out.Write(tenant.*kMember * 1e-9, {tenant.name});
  }
}

constexpr MetricSeries kRequestSeries[] = {
    {"kvasir_requests_total", MetricType::Counter, "outcome", "engine",
     "Requests by how they ended.", WriteOutcomes},
    {"kvasir_rejected_requests_total", MetricType::Counter, "reason", "engine, server",
     "Requests that were refused because of load or limits.", WriteRejected},
    {"kvasir_preemptions_total", MetricType::Counter, "cause", "engine",
     "Running requests that gave up their blocks.", WritePreemptions},
    {"kvasir_oldest_wait_seconds", MetricType::Gauge, "", "engine",
     "How long ago the oldest request that waits was submitted.", WriteOldestWait},
    {"kvasir_ttft_part_seconds", MetricType::Histogram, "part", "engine",
     "Parts of the time to the first token; they add up to it: waiting for room or its turn, "
     "waiting for a request that computes what both begin with, the cache, loading from a tier, "
     "computing.",
     WriteFirstTokenParts},
    {"kvasir_token_part_seconds_total", MetricType::Counter, "part", "engine",
     "Parts of the time between tokens; they add up to the sum of "
     "vllm:inter_token_latency_seconds. wait: time outside the step, and the rest.",
     WriteTokenParts},
    {"kvasir_saved_seconds_total", MetricType::Counter, "", "engine",
     "What computing the reused tokens would have taken, at the measured speed.", WriteSaved},
    {"kvasir_estimate_ratio", MetricType::Histogram, "of", "engine",
     "Real time by the time that was predicted: of steps, and of first tokens where a request had "
     "an estimate.",
     WriteEstimates},
    {"kvasir_steps_total", MetricType::Counter, "", "engine", "Steps of the engine.",
     Of<&Stats::steps>},
    {"kvasir_decode_steps_total", MetricType::Counter, "", "engine", "Steps with decode rows.",
     Of<&Stats::decode_steps>},
    {"kvasir_decode_rows_total", MetricType::Counter, "", "engine", "Decode rows of all steps.",
     Of<&Stats::decode_rows>},
    {"kvasir_prefill_rows_total", MetricType::Counter, "", "engine", "Prefill rows of all steps.",
     Of<&Stats::prefill_rows>},
    {"kvasir_mean_decode_batch", MetricType::Gauge, "", "engine",
     "Decode rows for each step that had any.", WriteMeanBatch},
    {"kvasir_step_seconds_total", MetricType::Counter, "", "engine", "Time inside steps.",
     SecondsOf<&Stats::step_ns>},
    {"kvasir_cache_seconds_total", MetricType::Counter, "", "engine",
     "Time inside Match, Extend and Commit.", SecondsOf<&Stats::cache_ns>},
    {"kvasir_time_to_first_token_seconds_total", MetricType::Counter, "", "engine",
     "From submission to the first token, of finished requests.", SecondsOf<&Stats::ttft_ns_sum>},
    {"kvasir_queue_seconds_total", MetricType::Counter, "", "engine",
     "From submission to admission, of finished requests.", SecondsOf<&Stats::queue_ns_sum>},
    {"kvasir_tenant_requests_total", MetricType::Counter, "tenant", "engine",
     "Requests that ended.", OfTenants<&TenantStats::requests>},
    {"kvasir_tenant_prompt_tokens_total", MetricType::Counter, "tenant", "engine",
     "Prompt tokens of these requests.", OfTenants<&TenantStats::prompt_tokens>},
    {"kvasir_tenant_computed_tokens_total", MetricType::Counter, "tenant", "engine",
     "Those of them that were computed.", OfTenants<&TenantStats::computed_tokens>},
    {"kvasir_tenant_generated_tokens_total", MetricType::Counter, "tenant", "engine",
     "Tokens that these requests generated.", OfTenants<&TenantStats::generated_tokens>},
    {"kvasir_tenant_rejected_total", MetricType::Counter, "tenant", "engine",
     "Requests that were refused because of load or limits.", OfTenants<&TenantStats::rejected>},
    {"kvasir_tenant_service_seconds_total", MetricType::Counter, "tenant", "engine",
     "Modelled time of the tenant's rows, which fairness goes by.",
     SecondsOfTenants<&TenantStats::service_ns>},
    {"kvasir_tenant_queue_seconds_total", MetricType::Counter, "tenant", "engine",
     "From submission to admission.", SecondsOfTenants<&TenantStats::queue_ns>},
    {"kvasir_tenant_preemptions_total", MetricType::Counter, "tenant", "engine",
     "Running requests that gave up their blocks.", OfTenants<&TenantStats::preemptions>},
    {"kvasir_tenant_blocks", MetricType::Gauge, "tenant,state", "engine",
     "Blocks of the tenant's cache, or of its share group's (group/NAME): pinned, idle, and "
     "reserved "
     "but not taken.",
     WriteOwnerBlocks},
};

}  // namespace

std::span<const MetricSeries> RequestSeries() { return kRequestSeries; }

}  // namespace kvasir
