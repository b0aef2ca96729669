// The counters of an engine, its server and this process as Prometheus text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kvasir/adapters.h"
#include "kvasir/engine_options.h"
#include "kvasir/engine_stats.h"
#include "kvasir/kv_events.h"
#include "kvasir/model_card.h"
#include "kvasir/plan.h"

namespace kvasir {

// Spans by what became of them.
struct SpanCounts {
  uint64_t sent = 0, dropped = 0, failed = 0;
};

// What this process uses, from /proc; 0 where that cannot be read.
struct ProcessUsage {
  double cpu_seconds = 0, start_seconds = 0;  // since 1970
  uint64_t resident_bytes = 0, open_files = 0;
};

// What /metrics is made of: a snapshot of the engine, and what only the server knows. The
// references must outlive it.
struct MetricsView {
  const EngineStats& stats;
  const ModelCard& card;
  const MemoryPlan& plan;
  const EngineOptions& options;
  std::string target, version;
  std::string model_name;  // the one listed first
  bool by_tenant = false;  // whether tenants have series: where there are several
  SpanCounts spans;
  uint64_t reloads_done = 0, reloads_refused = 0;                  // of the keys file
  uint64_t grammar_bytes = 0;                                      // in use
  uint64_t sessions = 0, session_bytes = 0, sessions_expired = 0;  // expired: since the start
  uint64_t stored_responses = 0, stored_response_bytes = 0;        // bytes: of session_bytes
  ProcessUsage process;
  std::vector<AdapterCard> adapters = {};
  std::optional<TierStats> disk = {};           // absent: the engine runs without a disk
  std::optional<RemoteStats> remote = {};       // absent: the engine runs without a store
  std::optional<KvEventsStats> events = {};     // absent: no KV events are published
  std::optional<int64_t> tls_ends_unix_s = {};  // of the certificate; absent: plain HTTP
  std::optional<double> read_limit;  // bytes a second that this machine can read; absent: unknown
};

// Returns the text exposition format 0.0.4. Series with vLLM's meaning have vLLM's names, and its
// labels model_name and engine; those of llama.cpp's server have its names. Others begin with
// kvasir_ or process_ and have their unit in the name.
std::string PrometheusText(const MetricsView& view);

// Returns the table of docs/metrics.md: a row for each series.
std::string MetricsMarkdown();

ProcessUsage ReadProcessUsage();  // opens two files of /proc

}  // namespace kvasir
