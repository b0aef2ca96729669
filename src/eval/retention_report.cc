// The results of `kvasir eval --retention` as tables and JSON.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "eval/kept_quality.h"
#include "eval/report.h"
#include "eval/retention.h"

namespace kvasir::eval {
namespace {

using Cells = std::vector<std::string>;
using RetentionJson = nlohmann::ordered_json;

std::string RightText(const RightCount& count) {
  return fmt::format("{} of {} (full: {})", count.right, count.probes, count.exact_right);
}

RetentionJson JsonOf(const RightCount& count) {
  return {{"probes", count.probes}, {"right", count.right}, {"exact_right", count.exact_right}};
}

RetentionJson FiguresOf(const Quality& quality) {
  return {{"tokens", quality.tokens},
          {"kl_mean", quality.kl.value},
          {"kl_error", quality.kl.error},
          {"same_top", quality.same_top.value},
          {"perplexity", quality.perplexity.value},
          {"exact_perplexity", quality.reference_perplexity.value}};
}

RetentionJson JsonOf(const RetentionMeasured& measured) {
  RetentionJson json = {{"policy", ToString(measured.choice.policy)},
                        {"budget", measured.budget},
                        {"sinks", measured.sinks},
                        {"recent", measured.recent}};
  if (measured.quality.tokens > 0) json.update(FiguresOf(measured.quality));
  if (measured.quality.tokens > 0) json["depths"] = RetentionJson::array();
  for (const DepthQuality& depth : measured.depths) {
    RetentionJson part = {{"begin", depth.begin}, {"end", depth.end}};
    part.update(FiguresOf(depth.quality));
    json["depths"].push_back(std::move(part));
  }
  if (measured.all.probes > 0) {
    json.update(JsonOf(measured.all));
    json["far"] = JsonOf(measured.far);
    json["second"] = JsonOf(measured.second);
  }
  if (measured.stream.empty()) return json;
  json["stream"] = RetentionJson::array();
  for (const StreamPart& part : measured.stream) {
    json["stream"].push_back({{"tokens", part.tokens},
                              {"perplexity", part.perplexity},
                              {"fresh_perplexity", part.fresh_perplexity}});
  }
  return json;
}

}  // namespace

std::string TablesOf(const RetentionReport& report) {
  std::string out = fmt::format("{} ({}, KV {}): retention against full attention: {}\n",
                                report.model, report.weights, report.kv_format, report.text);
  std::vector<Cells> table = {
      {"retention", "mean KL (nats)", "same top-1", "perplexity", "full's"}};
  std::vector<Cells> right = {
      {"right answers", "all", "fact beyond the budget", "second question"}};
  std::vector<Cells> stream = {{"perplexity by tenth"}};
  for (const RetentionMeasured& one : report.measured) {
    const Quality& quality = one.quality;
    if (quality.tokens > 0) {
      table.push_back({one.name, PlusMinus(quality.kl), Percent(quality.same_top),
                       fmt::format("{:.4f}", quality.perplexity.value),
                       fmt::format("{:.4f}", quality.reference_perplexity.value)});
    }
    if (one.all.probes > 0) {
      right.push_back({one.name, RightText(one.all), RightText(one.far), RightText(one.second)});
    }
    if (one.stream.empty()) continue;
    Cells& cells = stream.emplace_back(Cells{one.name});
    Cells& fresh = stream.emplace_back(Cells{"  fresh windows, full"});
    for (const StreamPart& part : one.stream) {
      cells.push_back(fmt::format("{:.3f}", part.perplexity));
      fresh.push_back(fmt::format("{:.3f}", part.fresh_perplexity));
    }
  }
  if (table.size() > 1) {
    out += fmt::format("\n{} tokens in {} windows of up to {}\n", CountText(report.tokens),
                       CountText(report.windows), CountText(report.window_tokens)) +
           Aligned(table);
  }
  if (right.size() > 1) out += "\n" + Aligned(right);
  if (stream.size() > 1) out += "\n" + Aligned(stream);
  return out;
}

nlohmann::ordered_json JsonOf(const RetentionReport& report) {
  RetentionJson json = {{"model", report.model},
                        {"weights", report.weights},
                        {"kv_format", report.kv_format},
                        {"text",
                         {{"source", report.text},
                          {"tokens", report.tokens},
                          {"windows", report.windows},
                          {"window_tokens", report.window_tokens}}},
                        {"retention", RetentionJson::array()}};
  for (const RetentionMeasured& one : report.measured) json["retention"].push_back(JsonOf(one));
  return json;
}

}  // namespace kvasir::eval
