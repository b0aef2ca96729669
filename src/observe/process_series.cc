// Series of the process: what it is, what it uses, what it could not send.
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include "base/log.h"
#include "kvasir/machine.h"
#include "observe/metric_series.h"

namespace kvasir {
namespace {

double SecondsOfTime(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

// Returns when the process started, in seconds since the system did (proc(5): field 22 of stat).
double StartAfterBoot() {
  std::ifstream file("/proc/self/stat");
  std::string text((std::istreambuf_iterator<char>(file)), {});
  // The name, in brackets, may have spaces and brackets.
  std::istringstream rest(text.substr(std::min(text.size(), text.rfind(')') + 2)));
  std::string field;
  for (int number = 3; number <= 22 && rest >> field; ++number) {
  }
  return static_cast<double>(std::strtoull(field.c_str(), nullptr, 10)) /
         static_cast<double>(sysconf(_SC_CLK_TCK));
}

// Counts the open files: with 500 connections the list takes longer to read than /metrics to write.
uint64_t OpenFiles() {
  struct stat about = {};
  if (stat("/proc/self/fd", &about) == 0 && about.st_size > 0) {
    return static_cast<uint64_t>(about.st_size);  // Linux 6.2 and later
  }
  uint64_t count = 0;
  std::error_code none;
  using Folder = std::filesystem::directory_iterator;
  for (Folder each("/proc/self/fd", none), end; !none && each != end; each.increment(none)) {
    ++count;
  }
  return count;
}

double BootTime() {
  std::ifstream file("/proc/stat");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("btime ")) return std::strtod(line.c_str() + 6, nullptr);
  }
  return 0;
}

const char* NameOf(CacheMode mode) {
  constexpr const char* kNames[] = {"prefix", "sequence", "none"};
  return kNames[static_cast<size_t>(mode)];
}

void WriteBuild(const MetricsView& view, SeriesWriter& out) {
  out.WriteFacts({{"version", view.version},
                  {"numerics", kNumericsVersion},
                  {"target", view.target},
                  {"model", view.model_name},
                  {"content", view.card.content},
                  {"kv_format", view.plan.kv_format},
                  {"cache", NameOf(view.options.cache_mode)},
                  {"eviction", view.options.eviction},
                  {"admission", view.options.admission == Admission::kFull ? "full" : "expected"},
                  {"schedule", view.options.schedule == Schedule::kFifo ? "fifo" : "fair"}});
}

template <uint64_t MetricsView::*field>
void OfView(const MetricsView& view, SeriesWriter& out) {
  out.Write(view.*field);
}

void WriteReloads(const MetricsView& view, SeriesWriter& out) {
  out.Write(view.reloads_done, {"done"});
  out.Write(view.reloads_refused, {"refused"});
}

void WriteSpans(const MetricsView& view, SeriesWriter& out) {
  out.Write(view.spans.sent, {"sent"});
  out.Write(view.spans.dropped, {"dropped"});
  out.Write(view.spans.failed, {"failed"});
}

void WritePlanned(const MetricsView& view, SeriesWriter& out) {
  out.Write(view.plan.total_bytes + view.plan.process_bytes);
}

void WriteTlsEnd(const MetricsView& view, SeriesWriter& out) {
  if (view.tls_ends_unix_s) out.Write(static_cast<double>(*view.tls_ends_unix_s));
}

void WriteLogLines(const MetricsView&, SeriesWriter& out) {
  out.Write(static_cast<double>(LogLinesDropped()));
}

template <auto kMember>
void OfProcess(const MetricsView& view, SeriesWriter& out) {
  out.Write(static_cast<double>(view.process.*kMember));
}

constexpr MetricSeries kProcessSeries[] = {
    {"kvasir_build_info", MetricType::Gauge, "", "server",
     "1; its labels say what runs: version, numerics, target, model, content (the digest of all "
     "that decides a logit), kv_format, cache, eviction, admission, schedule.",
     WriteBuild},
    {"kvasir_config_reloads_total", MetricType::Counter, "outcome", "server",
     "Times that SIGHUP asked for the keys file again, and whether it was taken.", WriteReloads},
    {"kvasir_tls_certificate_expiration_timestamp_seconds", MetricType::Gauge, "", "server",
     "Until when the certificate of --tls-cert is valid, since 1970; absent without https.",
     WriteTlsEnd},
    {"kvasir_grammar_memory_bytes", MetricType::Gauge, "", "server",
     "The vocabulary as bytes, grammars and masks of formats; at most --grammar-memory.",
     OfView<&MetricsView::grammar_bytes>},
    {"kvasir_sessions", MetricType::Gauge, "", "server", "Sessions of all tenants.",
     OfView<&MetricsView::sessions>},
    {"kvasir_session_memory_bytes", MetricType::Gauge, "", "server",
     "Text, ids and tables of sessions; at most --session-memory.",
     OfView<&MetricsView::session_bytes>},
    {"kvasir_sessions_expired_total", MetricType::Counter, "", "server",
     "Sessions that were not called for --session-ttl.", OfView<&MetricsView::sessions_expired>},
    {"kvasir_stored_responses", MetricType::Gauge, "", "server",
     "Stored responses of all tenants; at most --responses.",
     OfView<&MetricsView::stored_responses>},
    {"kvasir_stored_response_bytes", MetricType::Gauge, "", "server",
     "Text, ids and tables of stored responses, of kvasir_session_memory_bytes.",
     OfView<&MetricsView::stored_response_bytes>},
    {"kvasir_spans_total", MetricType::Counter, "outcome", "server",
     "Spans that a collector took, that the queue had no room for, or that no collector took.",
     WriteSpans},
    {"kvasir_log_lines_dropped_total", MetricType::Counter, "", "process",
     "Lines of the log that could not be written at once.", WriteLogLines},
    {"kvasir_planned_memory_bytes", MetricType::Gauge, "", "server",
     "The most that this process may use, as 'kvasir plan' says.", WritePlanned},
    {"process_resident_memory_bytes", MetricType::Gauge, "", "process", "Memory in use (RSS).",
     OfProcess<&ProcessUsage::resident_bytes>},
    {"process_open_fds", MetricType::Gauge, "", "process", "Open file descriptors.",
     OfProcess<&ProcessUsage::open_files>},
    {"process_start_time_seconds", MetricType::Gauge, "", "process", "When it started, since 1970.",
     OfProcess<&ProcessUsage::start_seconds>},
    {"process_cpu_seconds_total", MetricType::Counter, "", "process", "CPU time of all threads.",
     OfProcess<&ProcessUsage::cpu_seconds>},
};

}  // namespace

ProcessUsage ReadProcessUsage() {
  ProcessUsage usage;
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  usage.cpu_seconds = SecondsOfTime(used.ru_utime) + SecondsOfTime(used.ru_stime);
  static const double start_seconds = BootTime() + StartAfterBoot();  // /proc/stat is slow to read
  usage.start_seconds = start_seconds;
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages >> pages;  // the second number
  usage.resident_bytes = pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  usage.open_files = OpenFiles();
  return usage;
}

std::span<const MetricSeries> ProcessSeries() { return kProcessSeries; }

}  // namespace kvasir
