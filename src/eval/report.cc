#include "eval/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "eval/kept_quality.h"

namespace kvasir::eval {
namespace {

using OrderedJson = nlohmann::ordered_json;
using Cells = std::vector<std::string>;

std::string MainTable(const EvalReport& report) {
  std::vector<Cells> table = {{"kv format", "bytes/token", "mean KL (nats)", "99%", "max",
                               "same top-1", "perplexity", "prob. rms"}};
  const std::vector<const Measured*> rows = report.rows();
  const Quality& first = rows.front()->quality;
  table.push_back({"f32", CountText(report.reference_bytes_per_token), "0", "", "", "",
                   fmt::format("{:.4f}", first.reference_perplexity.value), ""});
  for (const Measured* row : rows) {
    const Quality& quality = row->quality;
    table.push_back({row->kv_format, CountText(row->kv_bytes_per_token), PlusMinus(quality.kl),
                     KlText(quality.kl_p99), KlText(quality.kl_max), Percent(quality.same_top),
                     fmt::format("{:.4f}", quality.perplexity.value),
                     fmt::format("{:.2g}%", 100 * quality.probability_rms)});
  }
  return Aligned(table);
}

std::string DepthTable(const EvalReport& report) {
  std::vector<Cells> table = {{"depth in tokens"}, {"tokens"}};
  const std::vector<const Measured*> rows = report.rows();
  for (const DepthQuality& depth : rows.front()->depths) {
    table[0].push_back(fmt::format("{}-{}", depth.begin, depth.end - 1));
    table[1].push_back(CountText(depth.quality.tokens));
  }
  for (const Measured* row : rows) {
    Cells& kl = table.emplace_back(Cells{row->kv_format});
    for (const DepthQuality& depth : row->depths) kl.push_back(KlText(depth.quality.kl.value));
  }
  return Aligned(table);
}

std::string RecallTable(const EvalReport& report) {
  std::vector<Cells> table = {{"right answers"}, {"probes"}};
  const auto add = [&](const std::string& name, const std::vector<Answer>& answers, bool itself) {
    Cells& cells = table.emplace_back(Cells{name});
    const std::vector<RecallCount> counts = CountRecall(report, answers);
    for (const RecallCount& count : counts) {
      cells.push_back(fmt::format(
          "{:.1f}%", 100.0 * static_cast<double>(count.right) / static_cast<double>(count.probes)));
    }
    if (itself) return;
    cells.push_back(CountText(counts[0].lost));
    cells.push_back(CountText(counts[0].gained));
    cells.push_back(CountText(counts[0].changed));
  };
  for (const RecallCount& count : CountRecall(report, report.reference_answers)) {
    table[0].push_back(count.kind);
    table[1].push_back(CountText(count.probes));
  }
  for (const char* head : {"lost", "gained", "changed"}) table[0].emplace_back(head);
  add("f32", report.reference_answers, true);
  for (const Measured* row : report.rows()) add(row->kv_format, row->answers, false);
  return Aligned(table);
}

std::string LayerTable(const EvalReport& report) {
  std::vector<Cells> table = {{"layer"}};
  for (const FormatReport& format : report.formats) {
    if (!format.layers) continue;
    table[0].push_back(format.measured.choice.format);
    const std::vector<LayerCost>& costs = format.layers->costs;
    table.resize(costs.size() + 1);
    for (size_t i = 0; i < costs.size(); ++i) {
      if (table[i + 1].empty()) table[i + 1].push_back(std::to_string(costs[i].layer));
      table[i + 1].push_back(KlText(costs[i].kl.value));
    }
  }
  return Aligned(table);
}

// Returns a format without skipped layers that takes no more bytes than `list` and has a lower
// cost, so that the list is not worth it; nullptr if there is no such format.
const Measured* BetterThan(const EvalReport& report, const Measured& list) {
  const Measured* best = nullptr;
  for (const FormatReport& format : report.formats) {
    const Measured& other = format.measured;
    if (other.kv_bytes_per_token > list.kv_bytes_per_token) continue;
    const double kl = best == nullptr ? list.quality.kl.value : best->quality.kl.value;
    if (other.quality.kl.value < kl) best = &other;
  }
  return best;
}

std::string Advice(const EvalReport& report) {
  std::string out;
  for (const FormatReport& format : report.formats) {
    if (!format.layers) continue;
    const std::string& name = format.measured.choice.format;
    const double kl = format.measured.quality.kl.value;
    const std::optional<std::vector<uint32_t>>& list = format.layers->skip_layers;
    if (!list) {
      out += fmt::format(
          "{}: mean KL {} is over {}, and no list of layers except all of them meets it: "
          "choose another format\n",
          name, KlText(kl), KlText(report.max_kl));
    } else if (list->empty()) {
      out += fmt::format("{}: mean KL {} is within {} in all layers\n", name, KlText(kl),
                         KlText(report.max_kl));
    } else {
      const Measured& verified = *format.layers->verified;
      out += fmt::format("{}: mean KL {} is over {}; --kv-format {} --kv-skip-layers {} has {}",
                         name, KlText(kl), KlText(report.max_kl), name, fmt::join(*list, ","),
                         KlText(verified.quality.kl.value));
      if (const Measured* better = BetterThan(report, verified)) {
        out += fmt::format(", but {} has {} in {} bytes a token", better->kv_format,
                           KlText(better->quality.kl.value), better->kv_bytes_per_token);
      }
      out += "\n";
    }
  }
  return out;
}

OrderedJson JsonOf(const Estimate& estimate, const char* name) {
  return {{name, estimate.value}, {"error", estimate.error}};
}

OrderedJson JsonOf(const Quality& quality) {
  return {{"tokens", quality.tokens},
          {"kl",
           {{"mean", quality.kl.value},
            {"error", quality.kl.error},
            {"median", quality.kl_median},
            {"p99", quality.kl_p99},
            {"max", quality.kl_max}}},
          {"top1", JsonOf(quality.same_top, "share")},
          {"perplexity", JsonOf(quality.perplexity, "value")},
          {"f32_perplexity", JsonOf(quality.reference_perplexity, "value")},
          {"log_perplexity_ratio", JsonOf(quality.log_perplexity_ratio, "mean")},
          {"probability_rms", quality.probability_rms}};
}

OrderedJson RecallJson(const EvalReport& report, const std::vector<Answer>& answers) {
  OrderedJson json = OrderedJson::object();
  for (const RecallCount& count : CountRecall(report, answers)) {
    json[count.kind] = {{"probes", count.probes},
                        {"right", count.right},
                        {"changed", count.changed},
                        {"lost", count.lost},
                        {"gained", count.gained}};
  }
  return json;
}

OrderedJson JsonOf(const EvalReport& report, const Measured& measured) {
  OrderedJson json = {{"kv_format", measured.kv_format},
                      {"kv_skip_layers", measured.choice.skip_layers},
                      {"kv_bytes_per_token", measured.kv_bytes_per_token}};
  json.update(JsonOf(measured.quality));
  json["depths"] = OrderedJson::array();
  for (const DepthQuality& depth : measured.depths) {
    OrderedJson part = {{"begin", depth.begin}, {"end", depth.end}};
    part.update(JsonOf(depth.quality));
    json["depths"].push_back(std::move(part));
  }
  if (!report.probes.empty()) json["recall"] = RecallJson(report, measured.answers);
  return json;
}

}  // namespace

std::string Aligned(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const std::vector<std::string>& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const std::vector<std::string>& row : rows) {
    std::string line = fmt::format("{:<{}}", row[0], widths[0]);
    for (size_t i = 1; i < row.size(); ++i) line += fmt::format("  {:>{}}", row[i], widths[i]);
    out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return out;
}

std::string PlusMinus(const Estimate& estimate) {
  return fmt::format("{} +- {:.2g}", KlText(estimate.value), estimate.error);
}

std::string Percent(const Estimate& share) {
  return fmt::format("{:.2f}% +- {:.2f}", 100 * share.value, 100 * share.error);
}

std::vector<const Measured*> EvalReport::rows() const {
  std::vector<const Measured*> all;
  for (const FormatReport& format : formats) {
    all.push_back(&format.measured);
    if (format.layers && format.layers->verified) all.push_back(&*format.layers->verified);
  }
  return all;
}

std::vector<RecallCount> CountRecall(const EvalReport& report, const std::vector<Answer>& answers) {
  std::vector<RecallCount> counts = {{"all"}};
  for (size_t i = 0; i < answers.size(); ++i) {
    const std::string& kind = report.probes[i].kind;
    auto of_kind = std::ranges::find(counts.begin() + 1, counts.end(), kind, &RecallCount::kind);
    if (of_kind == counts.end()) of_kind = counts.insert(counts.end(), RecallCount{kind});
    const Answer &want = report.reference_answers[i], &got = answers[i];
    for (RecallCount* count : {&counts[0], &*of_kind}) {
      ++count->probes;
      count->right += got.right ? 1 : 0;
      count->changed += want.text != got.text ? 1 : 0;
      count->lost += want.right && !got.right ? 1 : 0;
      count->gained += !want.right && got.right ? 1 : 0;
    }
  }
  return counts;
}

std::string TablesOf(const EvalReport& report) {
  std::string out = fmt::format(
      "{} ({}): KV formats against f32 over {} tokens in {} windows of up to {}: {}\n\n",
      report.model, report.weights, CountText(report.tokens), CountText(report.windows),
      CountText(report.window_tokens), report.text);
  out += MainTable(report) + "\nMean KL by depth\n" + DepthTable(report);
  if (!report.probes.empty()) out += "\n" + RecallTable(report);
  const auto has_layers = [](const FormatReport& format) { return format.layers.has_value(); };
  if (std::ranges::any_of(report.formats, has_layers)) {
    out += "\nMean KL of the format in one layer alone, all others f16\n" + LayerTable(report) +
           "\n" + Advice(report);
  }
  return out;
}

nlohmann::ordered_json JsonOf(const EvalReport& report) {
  OrderedJson json = {{"model", report.model},
                      {"weights", report.weights},
                      {"content", report.content},
                      {"text",
                       {{"source", report.text},
                        {"tokens", report.tokens},
                        {"windows", report.windows},
                        {"window_tokens", report.window_tokens}}},
                      {"max_kl", report.max_kl}};
  json["reference"] = {
      {"kv_format", "f32"},
      {"kv_bytes_per_token", report.reference_bytes_per_token},
      {"perplexity",
       JsonOf(report.formats.front().measured.quality.reference_perplexity, "value")}};
  if (!report.probes.empty()) {
    json["reference"]["recall"] = RecallJson(report, report.reference_answers);
  }
  json["formats"] = OrderedJson::array();
  for (const FormatReport& format : report.formats) {
    OrderedJson one = JsonOf(report, format.measured);
    if (format.layers) {
      one["layers"] = OrderedJson::array();
      for (const LayerCost& cost : format.layers->costs) {
        one["layers"].push_back({{"layer", cost.layer},
                                 {"kl", JsonOf(cost.kl, "mean")},
                                 {"top1", JsonOf(cost.same_top, "share")}});
      }
      const auto& list = format.layers->skip_layers;
      one["recommended_skip_layers"] = list ? OrderedJson(*list) : OrderedJson();
      const auto& verified = format.layers->verified;
      one["recommended"] = verified ? JsonOf(report, *verified) : OrderedJson();
    }
    json["formats"].push_back(std::move(one));
  }
  return json;
}

}  // namespace kvasir::eval
