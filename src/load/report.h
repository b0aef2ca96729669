// Report: the figures of a load run.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "base/percentile.h"
#include "load/client.h"

namespace kvasir::load {

// A request is good when its whole answer came, its first token within slo_ttft_ms, and its tokens
// within slo_itl_ms of each other on average.
struct ReportOptions {
  double slo_ttft_ms = 1000, slo_itl_ms = 200;
  std::optional<uint64_t> server_rss_bytes, server_peak_rss_bytes;
  double own_cpu_share = 0;  // of one core
};

// Above this share of a core the generator itself may have delayed what it measured.
inline constexpr double kMaxOwnCpuShare = 0.05;

struct TenantReport {
  uint64_t requests = 0, finished = 0, prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0;
  Percentiles ttft_ms;

  // Returns the tokens that the server computed for it.
  uint64_t served_tokens() const { return prompt_tokens - cached_tokens + completion_tokens; }
};

struct Report {
  uint64_t requests = 0, finished = 0, good = 0;
  uint64_t broken = 0;  // begun with 200, and not finished
  double seconds = 0, requests_per_s = 0, goodput_per_s = 0, tokens_per_s = 0;
  Percentiles ttft_ms, itl_ms;  // of finished requests; between any two tokens
  Percentiles refusal_ms;       // from when a request was due to the end of its refusal
  uint64_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0;
  std::map<uint32_t, uint64_t> refusals;  // by HTTP status; 0: no answer
  std::map<uint32_t, TenantReport> tenants;
  double fairness = 1;  // the least served tenant's tokens by those of the most served one
  ReportOptions of;

  bool is_void() const { return of.own_cpu_share > kMaxOwnCpuShare; }
};

Report MakeReport(const LoadResult& result, const ReportOptions& options);
std::string JsonOf(const Report& report);
std::string TextOf(const Report& report);

}  // namespace kvasir::load
