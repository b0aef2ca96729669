#include "observe/metrics.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <limits>
#include <utility>
#include <vector>

#include "base/log.h"

namespace kvasir {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

double Seconds(uint64_t ns) { return static_cast<double>(ns) * 1e-9; }

double Ratio(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

// Collects metric families in the order of the calls.
class Exposition {
 public:
  void Counter(const char* name, const char* help, double value) {
    Add(MetricType::Counter, name, help).metric.push_back(Sample(MetricType::Counter, value));
  }
  void Gauge(const char* name, const char* help, double value) {
    Add(MetricType::Gauge, name, help).metric.push_back(Sample(MetricType::Gauge, value));
  }
  void Distribution(const char* name, const char* help, const Histogram& histogram) {
    ClientMetric metric;
    metric.histogram.sample_count = histogram.count();
    metric.histogram.sample_sum = histogram.sum();
    uint64_t below = 0;
    for (size_t i = 0; i < histogram.bounds().size(); ++i) {
      below += histogram.count_of(i);
      metric.histogram.bucket.push_back({below, histogram.bounds()[i]});
    }
    metric.histogram.bucket.push_back({histogram.count(), std::numeric_limits<double>::infinity()});
    Add(MetricType::Histogram, name, help).metric.push_back(std::move(metric));
  }
  // One family with a label that has several values.
  void Labelled(MetricType type, const char* name, const char* help, const char* label,
                const std::vector<std::pair<const char*, double>>& values) {
    MetricFamily& family = Add(type, name, help);
    for (const auto& [label_value, value] : values) {
      ClientMetric metric = Sample(type, value);
      metric.label.push_back({label, label_value});
      family.metric.push_back(std::move(metric));
    }
  }
  std::string Text() const { return prometheus::TextSerializer().Serialize(families_); }

 private:
  MetricFamily& Add(MetricType type, const char* name, const char* help) {
    return families_.emplace_back(MetricFamily{name, help, type, {}});
  }
  static ClientMetric Sample(MetricType type, double value) {
    ClientMetric metric;
    (type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
    return metric;
  }
  std::vector<MetricFamily> families_;
};

void AddVllmNames(const EngineStats& s, Exposition* out) {
  out->Counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the cache.",
               s.prompt_tokens);
  out->Counter("vllm:prefix_cache_hits_total", "Prompt tokens served from the cache.",
               s.reused_pool + s.reused_partial);
  out->Gauge("vllm:num_requests_running", "Sequences that are running.", s.running);
  out->Gauge("vllm:num_requests_waiting", "Requests that wait for room.", s.queued);
  out->Gauge("vllm:kv_cache_usage_perc", "Share of blocks in use by sequences, 1 is all.",
             Ratio(s.pinned_blocks, s.free_blocks + s.idle_blocks + s.pinned_blocks));
  out->Counter("vllm:prompt_tokens_total", "Prompt tokens.", s.prompt_tokens);
  out->Counter("vllm:generation_tokens_total", "Generated tokens.", s.generated_tokens);
  out->Distribution("vllm:time_to_first_token_seconds", "From submission to the first token.",
                    s.ttft_seconds);
  out->Distribution("vllm:time_per_output_token_seconds", "From a token of an answer to the next.",
                    s.token_seconds);
  out->Distribution("vllm:e2e_request_latency_seconds", "From submission to the last token.",
                    s.request_seconds);
  out->Distribution("vllm:request_queue_time_seconds", "From submission to admission.",
                    s.queue_seconds);
  out->Distribution("vllm:request_prompt_tokens", "Prompt tokens of a request.", s.prompt_lengths);
  out->Distribution("vllm:request_generation_tokens", "Generated tokens of a request.",
                    s.answer_lengths);
}

void AddCache(const EngineStats& s, Exposition* out) {
  out->Counter("kvasir_computed_tokens_total", "Prompt tokens that were computed.",
               s.computed_tokens);
  out->Labelled(MetricType::Counter, "kvasir_reused_tokens_total", "Prompt tokens by source.",
                "source", {{"pool", s.reused_pool}, {"partial", s.reused_partial}});
  out->Counter("kvasir_cursor_hits_total", "Prompts answered from a Cursor without computing.",
               s.cursor_hits);
  std::vector<std::pair<const char*, double>> misses;
  for (size_t i = 0; i < std::size(s.misses); ++i) {
    misses.emplace_back(ToString(static_cast<MissReason>(i)), s.misses[i]);
  }
  out->Labelled(MetricType::Counter, "kvasir_misses_total", "Prompts by why reuse ended.", "reason",
                misses);
  out->Labelled(MetricType::Gauge, "kvasir_blocks", "Blocks by state.", "state",
                {{"free", s.free_blocks}, {"idle", s.idle_blocks}, {"pinned", s.pinned_blocks}});
  out->Gauge("kvasir_cached_tokens", "Tokens that the prefix index holds.", s.cached_tokens);
  out->Gauge("kvasir_live_tokens", "Tokens of running sequences that are not in the cache yet.",
             s.live_tokens);
  out->Gauge("kvasir_cursors", "Cursors held.", s.cursors);
  out->Counter("kvasir_committed_blocks_total", "Blocks published.", s.committed_blocks);
  out->Counter("kvasir_evicted_blocks_total", "Blocks evicted.", s.evicted_blocks);
  out->Counter("kvasir_copied_blocks_total", "Blocks copied on write.", s.copied_blocks);
  out->Counter("kvasir_deduplicated_blocks_total", "Blocks computed twice and kept once.",
               s.deduplicated_blocks);
  out->Gauge("kvasir_waste_ratio", "Bytes of non-free blocks that hold no live or cached token.",
             s.waste);
  out->Gauge("kvasir_worst_waste_ratio", "Largest waste while the pool was at least 90% full.",
             s.worst_waste);
}

void AddScheduler(const EngineStats& s, Exposition* out) {
  out->Labelled(MetricType::Counter, "kvasir_requests_total", "Requests by how they ended.",
                "outcome",
                {{"finished", s.requests_finished},
                 {"cancelled", s.requests_cancelled},
                 {"failed", s.requests_failed},
                 {"deadline", s.requests_past_deadline}});
  std::vector<std::pair<const char*, double>> preemptions;
  for (size_t i = 0; i < std::size(s.preemptions); ++i) {
    preemptions.emplace_back(ToString(static_cast<PreemptCause>(i)), s.preemptions[i]);
  }
  out->Labelled(MetricType::Counter, "kvasir_preemptions_total",
                "Running requests that gave up their blocks.", "cause", preemptions);
  out->Labelled(MetricType::Counter, "kvasir_recomputed_tokens_total",
                "Tokens that were computed again.", "cause",
                {{"preempted", s.recomputed_tokens - s.recomputed_rope_tokens},
                 {"rope", s.recomputed_rope_tokens}});
  out->Counter("kvasir_steps_total", "Steps of the engine.", s.steps);
  out->Counter("kvasir_decode_steps_total", "Steps with decode rows.", s.decode_steps);
  out->Counter("kvasir_decode_rows_total", "Decode rows of all steps.", s.decode_rows);
  out->Counter("kvasir_prefill_rows_total", "Prefill rows of all steps.", s.prefill_rows);
  out->Counter(
      "kvasir_weight_read_bytes_total",
      "Weights that products read: each matrix once a product, of experts the chosen ones.",
      s.weight_read_bytes);
  out->Counter("kvasir_kv_read_bytes_total",
               "K and V that attention read; a prefix that rows of a step share: once.",
               s.kv_read_bytes);
  out->Gauge("kvasir_mean_decode_batch", "Decode rows for each step that had any.",
             Ratio(s.decode_rows, s.decode_steps));
  out->Counter("kvasir_step_seconds_total", "Time inside steps.", Seconds(s.step_ns));
  out->Counter("kvasir_cache_seconds_total", "Time inside Match, Extend and Commit.",
               Seconds(s.cache_ns));
  out->Counter("kvasir_time_to_first_token_seconds_total",
               "From submission to first token, of finished requests.", Seconds(s.ttft_ns_sum));
  out->Counter("kvasir_queue_seconds_total", "From submission to admission, of finished requests.",
               Seconds(s.queue_ns_sum));
}

}  // namespace

std::string PrometheusText(const EngineStats& stats) {
  Exposition exposition;
  AddVllmNames(stats, &exposition);
  AddCache(stats, &exposition);
  AddScheduler(stats, &exposition);
  exposition.Counter("kvasir_log_lines_dropped_total",
                     "Lines of the log that could not be written at once.",
                     static_cast<double>(LogLinesDropped()));
  return exposition.Text();
}

}  // namespace kvasir
