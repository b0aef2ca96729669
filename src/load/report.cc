#include "load/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/sizes.h"

namespace kvasir::load {
namespace {

using nlohmann::ordered_json;

ordered_json JsonOf(const Percentiles& all) {
  return {{"count", all.count}, {"mean", all.mean}, {"p50", all.p50}, {"p90", all.p90},
          {"p95", all.p95},     {"p99", all.p99},   {"max", all.max}};
}

ordered_json JsonOf(const TenantReport& tenant) {
  return {{"requests", tenant.requests},
          {"finished", tenant.finished},
          {"served_tokens", tenant.served_tokens()},
          {"cached_tokens", tenant.cached_tokens},
          {"ttft_ms", JsonOf(tenant.ttft_ms)}};
}

std::string TextOf(const char* name, const Percentiles& all) {
  return fmt::format(
      "{:<9} mean {:.1f} ms, p50 {:.1f}, p90 {:.1f}, p95 {:.1f}, p99 {:.1f}, max {:.1f}\n", name,
      all.mean, all.p50, all.p90, all.p95, all.p99, all.max);
}

double Fairness(const std::map<uint32_t, TenantReport>& tenants) {
  uint64_t least = 0, most = 0;
  bool first = true;
  for (const auto& [number, tenant] : tenants) {
    least = first ? tenant.served_tokens() : std::min(least, tenant.served_tokens());
    most = std::max(most, tenant.served_tokens());
    first = false;
  }
  return most == 0 ? 1 : static_cast<double>(least) / static_cast<double>(most);
}

}  // namespace

Report MakeReport(const LoadResult& result, const ReportOptions& options) {
  Report report{.requests = result.samples.size(), .seconds = result.seconds, .of = options};
  std::vector<double> ttft_ms, itl_ms, refusal_ms;
  std::map<uint32_t, std::vector<double>> tenant_ttft_ms;
  for (const Sample& sample : result.samples) {
    TenantReport& tenant = report.tenants[sample.tenant];
    ++tenant.requests;
    if (sample.status != 200) {
      ++report.refusals[sample.status];
      if (sample.status > 0) refusal_ms.push_back(sample.whole_ms());
      continue;
    }
    const bool finished = sample.done && sample.first_ns > 0;
    report.broken += !finished;
    if (!finished) continue;
    ++report.finished;
    ++tenant.finished;
    report.good += sample.ttft_ms() <= options.slo_ttft_ms && sample.itl_ms() <= options.slo_itl_ms;
    ttft_ms.push_back(sample.ttft_ms());
    tenant_ttft_ms[sample.tenant].push_back(sample.ttft_ms());
    itl_ms.insert(itl_ms.end(), sample.gaps_ms.begin(), sample.gaps_ms.end());
    tenant.prompt_tokens += sample.prompt_tokens;
    tenant.completion_tokens += sample.completion_tokens;
    tenant.cached_tokens += std::min(sample.cached_tokens, sample.prompt_tokens);
  }
  for (auto& [number, tenant] : report.tenants) {
    tenant.ttft_ms = PercentilesOf(std::move(tenant_ttft_ms[number]));
    report.prompt_tokens += tenant.prompt_tokens;
    report.completion_tokens += tenant.completion_tokens;
    report.cached_tokens += tenant.cached_tokens;
  }
  report.ttft_ms = PercentilesOf(std::move(ttft_ms));
  report.itl_ms = PercentilesOf(std::move(itl_ms));
  report.refusal_ms = PercentilesOf(std::move(refusal_ms));
  const double seconds = std::max(report.seconds, 1e-9);
  report.requests_per_s = static_cast<double>(report.finished) / seconds;
  report.goodput_per_s = static_cast<double>(report.good) / seconds;
  report.tokens_per_s = static_cast<double>(report.completion_tokens) / seconds;
  report.fairness = Fairness(report.tenants);
  return report;
}

std::string JsonOf(const Report& report) {
  const auto bytes = [](const std::optional<uint64_t>& value) {
    return value ? ordered_json(*value) : ordered_json();
  };
  ordered_json refusals = ordered_json::object(), tenants = ordered_json::array();
  for (const auto& [status, count] : report.refusals) refusals[std::to_string(status)] = count;
  for (const auto& [number, tenant] : report.tenants) tenants.push_back(JsonOf(tenant));
  const ordered_json json = {{"void", report.is_void()},
                             {"requests", report.requests},
                             {"finished", report.finished},
                             {"broken", report.broken},
                             {"refusals", refusals},
                             {"seconds", report.seconds},
                             {"requests_per_s", report.requests_per_s},
                             {"goodput_per_s", report.goodput_per_s},
                             {"tokens_per_s", report.tokens_per_s},
                             {"slo_ttft_ms", report.of.slo_ttft_ms},
                             {"slo_itl_ms", report.of.slo_itl_ms},
                             {"ttft_ms", JsonOf(report.ttft_ms)},
                             {"itl_ms", JsonOf(report.itl_ms)},
                             {"refusal_ms", JsonOf(report.refusal_ms)},
                             {"prompt_tokens", report.prompt_tokens},
                             {"cached_tokens", report.cached_tokens},
                             {"completion_tokens", report.completion_tokens},
                             {"fairness", report.fairness},
                             {"tenants", tenants},
                             {"server_rss_bytes", bytes(report.of.server_rss_bytes)},
                             {"server_peak_rss_bytes", bytes(report.of.server_peak_rss_bytes)},
                             {"own_cpu_share", report.of.own_cpu_share}};
  return json.dump(2) + "\n";
}

std::string TextOf(const Report& report) {
  std::string refusals;
  for (const auto& [status, count] : report.refusals) {
    refusals += status == 0 ? fmt::format(", {} without an answer", count)
                            : fmt::format(", {} with status {}", count, status);
  }
  std::string text =
      fmt::format("requests  {} sent in {:.1f} s: {} finished, {} broken{}\n", report.requests,
                  report.seconds, report.finished, report.broken, refusals);
  text += fmt::format("speed     {:.2f} requests/s, {:.1f} tokens/s of answers\n",
                      report.requests_per_s, report.tokens_per_s);
  text += fmt::format(
      "goodput   {:.2f} requests/s with a first token within {} ms and {} ms between tokens\n",
      report.goodput_per_s, report.of.slo_ttft_ms, report.of.slo_itl_ms);
  text += TextOf("ttft", report.ttft_ms) + TextOf("itl", report.itl_ms);
  if (report.refusal_ms.count > 0) text += TextOf("refusals", report.refusal_ms);
  text += fmt::format("tokens    {} of prompts, {} of them from the cache; {} of answers\n",
                      report.prompt_tokens, report.cached_tokens, report.completion_tokens);
  if (report.tenants.size() > 1) {
    text +=
        fmt::format("fairness  {:.2f}: tokens of the least served tenant by the most served one\n",
                    report.fairness);
    for (const auto& [number, tenant] : report.tenants) {
      text += fmt::format(
          "  tenant {}: {} of {} finished, {} served, ttft p50 {:.1f} ms, p95 {:.1f}\n", number,
          tenant.finished, tenant.requests, CountText(tenant.served_tokens(), "token"),
          tenant.ttft_ms.p50, tenant.ttft_ms.p95);
    }
  }
  if (report.of.server_rss_bytes) {
    text +=
        fmt::format("memory    the server has {:.1f} MiB, at most {:.1f}\n",
                    static_cast<double>(*report.of.server_rss_bytes) / (1 << 20),
                    static_cast<double>(report.of.server_peak_rss_bytes.value_or(0)) / (1 << 20));
  }
  text += fmt::format("generator {:.1f}% of a core{}\n", 100 * report.of.own_cpu_share,
                      report.is_void() ? fmt::format("; more than {:.0f}%: these figures are void",
                                                     100 * kMaxOwnCpuShare)
                                       : "");
  return text;
}

}  // namespace kvasir::load
