// Series with the names and meanings of llama.cpp's server, so that its dashboards work.
#include "observe/metric_series.h"

namespace kvasir {
namespace {

using Stats = EngineStats;

double SecondsOfPrompts(const MetricsView& view) {
  return view.stats.requests.prefill_seconds.sum();
}

void WriteCachedTokens(const MetricsView& view, SeriesWriter& out) {
  out.Write(static_cast<double>(view.stats.reused_tokens()));
}

void WritePromptSeconds(const MetricsView& view, SeriesWriter& out) {
  out.Write(SecondsOfPrompts(view));
}

void WriteAnswerSeconds(const MetricsView& view, SeriesWriter& out) {
  out.Write(view.stats.token_seconds.sum());
}

void WritePromptSpeed(const MetricsView& view, SeriesWriter& out) {
  out.Write(Ratio(static_cast<double>(view.stats.computed_tokens), SecondsOfPrompts(view)));
}

void WriteAnswerSpeed(const MetricsView& view, SeriesWriter& out) {
  const Histogram& seconds = view.stats.token_seconds;
  out.Write(Ratio(static_cast<double>(seconds.count()), seconds.sum()));
}

void WriteBusy(const MetricsView& view, SeriesWriter& out) {
  out.Write(Ratio(static_cast<double>(view.stats.decode_rows),
                  static_cast<double>(view.stats.decode_steps)));
}

constexpr MetricSeries kLlamaSeries[] = {
    {"llamacpp:prompt_tokens_total", MetricType::Counter, "", "engine",
     "Prompt tokens that were computed.", Of<&Stats::computed_tokens>},
    {"llamacpp:prompt_tokens_cached_total", MetricType::Counter, "", "cache",
     "Prompt tokens that were not computed.", WriteCachedTokens},
    {"llamacpp:prompt_seconds_total", MetricType::Counter, "", "engine",
     "Seconds from admission to the first token.", WritePromptSeconds},
    {"llamacpp:tokens_predicted_total", MetricType::Counter, "", "engine", "Generated tokens.",
     Of<&Stats::generated_tokens>},
    {"llamacpp:tokens_predicted_seconds_total", MetricType::Counter, "", "engine",
     "Seconds between tokens of answers.", WriteAnswerSeconds},
    {"llamacpp:n_decode_total", MetricType::Counter, "", "engine", "Steps.", Of<&Stats::steps>},
    {"llamacpp:prompt_tokens_seconds", MetricType::Gauge, "", "engine",
     "Prompt tokens computed a second, since the start.", WritePromptSpeed},
    {"llamacpp:predicted_tokens_seconds", MetricType::Gauge, "", "engine",
     "Tokens of an answer a second, since the start.", WriteAnswerSpeed},
    {"llamacpp:requests_processing", MetricType::Gauge, "", "engine",
     "Choices of requests that are running.", Of<&Stats::running>},
    {"llamacpp:requests_deferred", MetricType::Gauge, "", "engine", "Requests that wait.",
     Of<&Stats::queued>},
    {"llamacpp:n_busy_slots_per_decode", MetricType::Gauge, "", "engine",
     "Choices that get a token in a step that decodes, since the start.", WriteBusy},
};

}  // namespace

std::span<const MetricSeries> LlamaSeries() { return kLlamaSeries; }

}  // namespace kvasir
