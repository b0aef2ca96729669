// MetricSeries: one row of the table of all metrics, which /metrics and docs/metrics.md come from.
#pragma once

#include <prometheus/metric_family.h>

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "kvasir/histogram.h"
#include "observe/metrics.h"

namespace kvasir {

using prometheus::MetricType;
class SeriesWriter;

struct MetricSeries {
  const char* name;  // vllm: or llamacpp: where the meaning is theirs, else kvasir_ or process_
  MetricType type;
  const char* labels;  // its own, as "state" or "tenant,state"; every vllm: series has kVllmLabels
  const char* source;  // who counts it: a room, or "process"
  const char* help;
  void (*write)(const MetricsView& view, SeriesWriter& out);
};
inline constexpr const char* kVllmLabels = "model_name,engine";

// Returns the table, in the order of the text. Each part has a source file.
std::span<const MetricSeries> VllmSeries();
std::span<const MetricSeries> LlamaSeries();
std::span<const MetricSeries> CacheSeries();
std::span<const MetricSeries> TierSeries();
std::span<const MetricSeries> RequestSeries();
std::span<const MetricSeries> ProcessSeries();

// Collects the samples of one series. `values`: of the series' labels, in their order.
class SeriesWriter {
 public:
  SeriesWriter(const MetricSeries& series, const MetricsView& view);

  using Values = std::initializer_list<std::string_view>;
  void Write(double number, Values values = {});
  void Write(const Histogram& histogram, Values values = {});
  // Writes pairs of a label and its value, beside those of the series.
  void WriteFacts(std::initializer_list<std::pair<const char*, std::string>> facts);

  bool empty() const { return family_.metric.empty(); }
  prometheus::MetricFamily Take() { return std::move(family_); }

 private:
  prometheus::ClientMetric& Add(Values values);

  const MetricSeries& series_;
  const MetricsView& view_;
  prometheus::MetricFamily family_;
};

// Writes one number or histogram of EngineStats, or of its RequestStats.
template <auto kMember>
void Of(const MetricsView& view, SeriesWriter& out) {
  out.Write(view.stats.*kMember);
}
template <auto kMember>
void OfRequests(const MetricsView& view, SeriesWriter& out) {
  out.Write(view.stats.requests.*kMember);
}
template <auto kMember>
void SecondsOf(const MetricsView& view, SeriesWriter& out) {
  out.Write(static_cast<double>(view.stats.*kMember) * 1e-9);
}

const char* NameOf(MetricType type);  // "counter", ...
void AddFamily(const prometheus::MetricFamily& family, std::string& text);

inline double Ratio(double part, double whole) { return whole == 0 ? 0 : part / whole; }

}  // namespace kvasir
