// Series with vLLM's names, meanings and buckets (vLLM 0.32), so that its dashboards work.
#include <fmt/format.h>

#include "base/clock.h"
#include "observe/metric_series.h"

namespace kvasir {
namespace {

using Stats = EngineStats;
using Requests = RequestStats;

void WriteUsage(const MetricsView& view, SeriesWriter& out) {
  const EngineStats& s = view.stats;
  out.Write(Ratio(s.pinned_blocks, s.free_blocks + s.idle_blocks + s.pinned_blocks));
}

void WriteConfig(const MetricsView& view, SeriesWriter& out) {
  out.WriteFacts(
      {{"block_size", std::to_string(view.plan.block_tokens)},
       {"cache_dtype", view.plan.kv_format},
       {"num_gpu_blocks", std::to_string(view.plan.num_blocks)},
       {"num_cpu_blocks", "0"},
       {"kv_cache_memory_bytes", std::to_string(view.plan.kv_bytes)},
       {"enable_prefix_caching", view.options.cache_mode == CacheMode::kPrefix ? "True" : "False"},
       {"prefix_caching_hash_algo", "sha256"},
       {"gpu_memory_utilization", "None"},
       {"sliding_window", "None"}});
}

// Joins the names of adapters that have requests of one kind.
std::string NamesWith(const std::vector<AdapterCard>& adapters, uint32_t AdapterCard::*requests) {
  std::string names;
  for (const AdapterCard& card : adapters) {
    if (card.*requests > 0) names += (names.empty() ? "" : ",") + card.name;
  }
  return names;
}

void WriteAdapters(const MetricsView& view, SeriesWriter& out) {
  if (!view.options.adapters.any()) return;
  out.Write(static_cast<double>(UnixS()), {std::to_string(view.options.adapters.max_loaded),
                                           NamesWith(view.adapters, &AdapterCard::running),
                                           NamesWith(view.adapters, &AdapterCard::waiting)});
}

void WriteHits(const MetricsView& view, SeriesWriter& out) {
  out.Write(static_cast<double>(view.stats.reused_pool + view.stats.reused_partial));
}

void WriteExternalQueries(const MetricsView& view, SeriesWriter& out) {
  const EngineStats& s = view.stats;
  if (!view.disk && !view.remote) return;
  out.Write(s.prompt_tokens - s.reused_pool - s.reused_partial);
}

void WriteExternalHits(const MetricsView& view, SeriesWriter& out) {
  if (!view.disk && !view.remote) return;
  out.Write(view.stats.reused_disk + view.stats.reused_remote);
}

void WriteCached(const MetricsView& view, SeriesWriter& out) {
  out.Write(static_cast<double>(view.stats.reused_tokens()));
}

void WriteBySource(const MetricsView& view, SeriesWriter& out) {
  const EngineStats& s = view.stats;
  out.Write(s.computed_tokens, {"local_compute"});
  out.Write(s.reused_pool + s.reused_partial, {"local_cache_hit"});
  out.Write(s.reused_disk + s.reused_remote, {"external_kv_transfer"});
}

void WriteWaiting(const MetricsView& view, SeriesWriter& out) {
  const uint64_t following = view.stats.requests.following;
  out.Write(view.stats.queued - std::min(view.stats.queued, following), {"capacity"});
  out.Write(following, {"deferred"});
}

void WriteEnds(const MetricsView& view, SeriesWriter& out) {
  const RequestStats& sums = view.stats.requests;
  out.Write(sums.stopped, {"stop"});
  out.Write(sums.cut, {"length"});
  out.Write(sums.aborted, {"abort"});
  out.Write(sums.failed, {"error"});
}

void WritePreemptionsInAll(const MetricsView& view, SeriesWriter& out) {
  uint64_t sum = 0;
  for (const uint64_t count : view.stats.preemptions) sum += count;
  out.Write(sum);
}

void WriteRejections(const MetricsView& view, SeriesWriter& out) {
  uint64_t sum = 0;
  for (size_t i = 0; i < kNumRejectReasons; ++i) {
    sum += view.stats.requests.rejected[i];
  }
  out.Write(sum);
}

void WriteDrafts(const MetricsView& view, SeriesWriter& out) {
  out.Write(view.stats.drafts.drafts);
}

void WriteDrafted(const MetricsView& view, SeriesWriter& out) {
  out.Write(view.stats.drafts.drafted);
}

void WriteAccepted(const MetricsView& view, SeriesWriter& out) {
  out.Write(view.stats.drafts.accepted);
}

void WriteAcceptedAt(const MetricsView& view, SeriesWriter& out) {
  for (uint32_t i = 0; i < view.options.draft_max && i < kMaxDraft; ++i) {
    out.Write(view.stats.drafts.accepted_at[i], {std::to_string(i)});
  }
}

constexpr MetricSeries kVllmSeries[] = {
    {"vllm:num_requests_running", MetricType::Gauge, "", "engine",
     "Choices of requests that are running.", Of<&Stats::running>},
    {"vllm:num_requests_waiting", MetricType::Gauge, "", "engine", "Requests that wait.",
     Of<&Stats::queued>},
    {"vllm:num_requests_waiting_by_reason", MetricType::Gauge, "reason", "engine",
     "Requests that wait for room or their turn (capacity), or for a request that computes what "
     "both begin with (deferred).",
     WriteWaiting},
    {"vllm:kv_cache_usage_perc", MetricType::Gauge, "", "cache",
     "Share of blocks that sequences use; 1 is all.", WriteUsage},
    {"vllm:cache_config_info", MetricType::Gauge, "", "engine",
     "1; its labels are the configuration of the cache, as vLLM names it.", WriteConfig},
    {"vllm:lora_requests_info", MetricType::Gauge,
     "max_lora,running_lora_adapters,waiting_lora_adapters", "engine",
     "The time; its labels are the adapters that requests have. Absent without adapters.",
     WriteAdapters},
    {"vllm:prefix_cache_queries_total", MetricType::Counter, "", "cache",
     "Prompt tokens that were looked up in the cache.", Of<&Stats::prompt_tokens>},
    {"vllm:prefix_cache_hits_total", MetricType::Counter, "", "cache",
     "Prompt tokens that came from the cache.", WriteHits},
    {"vllm:prompt_tokens_cached_total", MetricType::Counter, "", "cache",
     "Prompt tokens that came from the cache or a tier.", WriteCached},
    {"vllm:external_prefix_cache_queries_total", MetricType::Counter, "", "cache",
     "Prompt tokens that the pool did not have; absent without a disk tier.", WriteExternalQueries},
    {"vllm:external_prefix_cache_hits_total", MetricType::Counter, "", "cache",
     "Of them, those that came from the disk tier.", WriteExternalHits},
    {"vllm:prompt_tokens_total", MetricType::Counter, "", "cache", "Prompt tokens.",
     Of<&Stats::prompt_tokens>},
    {"vllm:prompt_tokens_by_source_total", MetricType::Counter, "source", "cache",
     "Prompt tokens that were computed here, came from the cache here, or from elsewhere.",
     WriteBySource},
    {"vllm:generation_tokens_total", MetricType::Counter, "", "engine", "Generated tokens.",
     Of<&Stats::generated_tokens>},
    {"vllm:spec_decode_num_drafts_total", MetricType::Counter, "", "engine",
     "Drafts that steps checked, of one choice each.", WriteDrafts},
    {"vllm:spec_decode_num_draft_tokens_total", MetricType::Counter, "", "engine",
     "Tokens of these drafts.", WriteDrafted},
    {"vllm:spec_decode_num_accepted_tokens_total", MetricType::Counter, "", "engine",
     "Drafted tokens that the sampler drew.", WriteAccepted},
    {"vllm:spec_decode_num_accepted_tokens_per_pos_total", MetricType::Counter, "position",
     "engine", "The same, by their place in the draft, from 0 on.", WriteAcceptedAt},
    {"vllm:iteration_tokens_total", MetricType::Histogram, "", "engine", "Rows of a step.",
     OfRequests<&Requests::step_tokens>},
    {"vllm:num_preemptions_total", MetricType::Counter, "", "engine",
     "Running requests that gave up their blocks to others.", WritePreemptionsInAll},
    {"vllm:request_num_preemptions", MetricType::Histogram, "", "engine", "The same, of a request.",
     OfRequests<&Requests::preemptions>},
    {"vllm:request_success_total", MetricType::Counter, "finished_reason", "engine",
     "Choices by how they ended.", WriteEnds},
    {"vllm:corrupted_requests_total", MetricType::Counter, "", "engine",
     "Requests that failed because a number of the model was not finite.",
     OfRequests<&Requests::corrupted>},
    {"vllm:admission_rejections_total", MetricType::Counter, "", "engine, server",
     "Requests that were refused because of load or limits.", WriteRejections},
    {"vllm:time_to_first_token_seconds", MetricType::Histogram, "", "engine",
     "From submission to the first token.", Of<&Stats::ttft_seconds>},
    {"vllm:inter_token_latency_seconds", MetricType::Histogram, "", "engine",
     "From a token of an answer to the next.", Of<&Stats::token_seconds>},
    {"vllm:time_per_output_token_seconds", MetricType::Histogram, "", "engine",
     "The old name of vllm:inter_token_latency_seconds.", Of<&Stats::token_seconds>},
    {"vllm:request_time_per_output_token_seconds", MetricType::Histogram, "", "engine",
     "Mean time for each token after the first, of answers with several tokens.",
     OfRequests<&Requests::tpot_seconds>},
    {"vllm:e2e_request_latency_seconds", MetricType::Histogram, "", "engine",
     "From submission to the last token.", Of<&Stats::request_seconds>},
    {"vllm:request_queue_time_seconds", MetricType::Histogram, "", "engine",
     "From submission to admission.", Of<&Stats::queue_seconds>},
    {"vllm:request_prefill_time_seconds", MetricType::Histogram, "", "engine",
     "From admission to the first token.", OfRequests<&Requests::prefill_seconds>},
    {"vllm:request_decode_time_seconds", MetricType::Histogram, "", "engine",
     "From the first token to the last one.", OfRequests<&Requests::decode_seconds>},
    {"vllm:request_inference_time_seconds", MetricType::Histogram, "", "engine",
     "From admission to the last token.", OfRequests<&Requests::inference_seconds>},
    {"vllm:request_prompt_tokens", MetricType::Histogram, "", "engine",
     "Prompt tokens of a request.", Of<&Stats::prompt_lengths>},
    {"vllm:request_generation_tokens", MetricType::Histogram, "", "engine",
     "Generated tokens of a request.", Of<&Stats::answer_lengths>},
    {"vllm:request_prefill_kv_computed_tokens", MetricType::Histogram, "", "engine",
     "Prompt tokens of a request that were computed.", OfRequests<&Requests::computed_tokens>},
    {"vllm:request_params_n", MetricType::Histogram, "", "engine",
     "Choices that a request asked for.", OfRequests<&Requests::choices>},
    {"vllm:request_params_max_tokens", MetricType::Histogram, "", "engine",
     "max_tokens of a request, as far as it fits the context.", OfRequests<&Requests::max_tokens>},
};

}  // namespace

std::span<const MetricSeries> VllmSeries() { return kVllmSeries; }

}  // namespace kvasir
