#include "observe/metrics.h"

#include <fmt/format.h>

#include <limits>
#include <vector>

#include "base/check.h"
#include "observe/metric_series.h"

namespace kvasir {
namespace {

using prometheus::ClientMetric;

// Splits "tenant,state" into tenant, state.
std::vector<std::string> LabelsOf(std::string_view list) {
  std::vector<std::string> labels;
  while (!list.empty()) {
    labels.emplace_back(list.substr(0, list.find(',')));
    list.remove_prefix(std::min(list.size(), labels.back().size() + 1));
  }
  return labels;
}

bool IsVllms(const MetricSeries& series) {
  return std::string_view(series.name).starts_with("vllm:");
}

constexpr size_t kUsualTextBytes = 128 << 10;  // of all series

template <typename Use>
void ForEachSeries(const Use& use) {
  for (const auto part : {VllmSeries(), LlamaSeries(), CacheSeries(), TierSeries(), RequestSeries(),
                          ProcessSeries()}) {
    for (const MetricSeries& series : part) use(series);
  }
}

}  // namespace

SeriesWriter::SeriesWriter(const MetricSeries& series, const MetricsView& view)
    : series_(series), view_(view), family_{series.name, series.help, series.type, {}} {}

ClientMetric& SeriesWriter::Add(Values values) {
  ClientMetric& metric = family_.metric.emplace_back();
  if (IsVllms(series_)) metric.label = {{"model_name", view_.model_name}, {"engine", "0"}};
  if (values.size() == 0) return metric;
  const std::vector<std::string> labels = LabelsOf(series_.labels);
  KV_CHECK(values.size() == labels.size());
  for (size_t i = 0; i < values.size(); ++i) {
    metric.label.push_back({labels[i], std::string(values.begin()[i])});
  }
  return metric;
}

void SeriesWriter::Write(double number, Values values) {
  ClientMetric& metric = Add(values);
  (series_.type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = number;
}

void SeriesWriter::Write(const Histogram& histogram, Values values) {
  ClientMetric::Histogram& out = Add(values).histogram;
  out.sample_count = histogram.count();
  out.sample_sum = histogram.sum();
  out.bucket.reserve(histogram.bounds().size() + 1);
  uint64_t below = 0;
  for (size_t i = 0; i < histogram.bounds().size(); ++i) {
    below += histogram.count_of(i);
    out.bucket.push_back({below, histogram.bounds()[i]});
  }
  out.bucket.push_back({histogram.count(), std::numeric_limits<double>::infinity()});
}

void SeriesWriter::WriteFacts(std::initializer_list<std::pair<const char*, std::string>> facts) {
  ClientMetric& metric = Add({});
  for (const auto& [label, value] : facts) metric.label.push_back({label, value});
  metric.gauge.value = 1;
}

std::string PrometheusText(const MetricsView& view) {
  std::string text;
  text.reserve(kUsualTextBytes);
  ForEachSeries([&](const MetricSeries& series) {
    SeriesWriter writer(series, view);
    series.write(view, writer);
    if (!writer.empty()) AddFamily(writer.Take(), text);
  });
  return text;
}

std::string MetricsMarkdown() {
  std::string text =
      "| series | type | labels | counted by | meaning |\n| --- | --- | --- | --- | --- |\n";
  ForEachSeries([&](const MetricSeries& series) {
    std::string labels;
    const std::string all = IsVllms(series) ? std::string(kVllmLabels) + "," + series.labels
                                            : std::string(series.labels);
    for (const std::string& label : LabelsOf(all)) {
      labels += fmt::format("{}`{}`", labels.empty() ? "" : ", ", label);
    }
    text += fmt::format("| `{}` | {} | {} | {} | {} |\n", series.name, NameOf(series.type), labels,
                        series.source, series.help);
  });
  return text;
}

}  // namespace kvasir
