#include "observe/span_exporter.h"

#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/clock.h"
#include "base/json_writer.h"
#include "base/log.h"
#include "base/result.h"
#include "base/start_thread.h"

namespace kvasir {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kTimeout{10'000}, kLastTimeout{2'000}, kPeriod{1'000};
constexpr uint64_t kWarningPeriodNs = 60'000'000'000;
constexpr std::string_view kScheme = "http://";

size_t NumSpansOf(const std::vector<TracedRequest>& batch) {
  size_t spans = 0;
  for (const TracedRequest& request : batch) spans += NumSpans(request.trace);
  return spans;
}

// Takes "HOST", "HOST:PORT" or "[V6]:PORT" apart; false when it is none of them.
bool ParseAuthority(std::string_view text, CollectorAddress& address) {
  std::string_view rest;
  if (text.starts_with('[')) {
    const size_t end = text.find(']');
    if (end == text.npos) return false;
    address.host = text.substr(1, end - 1);
    rest = text.substr(end + 1);
  } else {
    address.host = text.substr(0, text.find(':'));
    rest = text.substr(address.host.size());
  }
  if (address.host.empty() || address.host.find_first_of(" @\t\r\n") != std::string::npos)
    return false;
  address.port = rest.empty() ? "4318" : std::string(rest.substr(1));
  return (rest.empty() || rest[0] == ':') && !address.port.empty() && address.port.size() <= 5 &&
         address.port.find_first_not_of("0123456789") == std::string::npos;
}

}  // namespace

Result<CollectorAddress> ParseCollectorAddress(std::string_view url) {
  CollectorAddress address;
  const std::string_view rest = url.substr(std::min(url.size(), kScheme.size()));
  const size_t slash = std::min(rest.find('/'), rest.size());
  address.path = slash == rest.size() ? "/v1/traces" : rest.substr(slash);
  const bool printable = address.path.find_first_of(" \t\r\n#") == std::string::npos;
  if (url.starts_with(kScheme) && printable && ParseAuthority(rest.substr(0, slash), address)) {
    return address;
  }
  return FailField(Code::kInvalidArgument, "otlp_traces_endpoint",
                   "is not an address such as http://localhost:4318/v1/traces (http only: for "
                   "https run a collector on this machine)");
}

Result<std::unique_ptr<SpanExporter>> SpanExporter::Start(const CollectorAddress& address,
                                                          SpanSource source) {
  auto poster = JsonPoster::Make(address.host, address.port, address.path, address.headers);
  if (!poster) {
    return FailField(Code::kInvalidArgument, "otlp_traces_endpoint", "{}", poster.error().message);
  }
  std::unique_ptr<SpanExporter> exporter(new SpanExporter(std::move(*poster), std::move(source)));
  KV_ASSIGN(exporter->thread_, StartThread("spans", [raw = exporter.get()] { raw->Run(); }));
  return exporter;
}

SpanExporter::SpanExporter(std::unique_ptr<JsonPoster> poster, SpanSource source)
    : source_(std::move(source)), poster_(std::move(poster)) {}

SpanExporter::~SpanExporter() {
  if (!thread_.joinable()) return;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
    const uint64_t end_ns = MonotonicNs() + uint64_t{kLastTimeout.count()} * 1'000'000;
    while (!stopped_ && MonotonicNs() < end_ns) lock.WaitFor(changed_, milliseconds(50));
  }
  poster_->Stop();
  thread_.join();
}

void SpanExporter::Add(TracedRequest request) noexcept {
  const size_t spans = NumSpans(request.trace);
  const MutexLock lock(mutex_);
  if (queued_spans_ + spans > kMaxSpans) {
    counts_.dropped += spans;
    return;
  }
  try {
    queue_.push_back(std::move(request));
  } catch (...) {  // no memory
    counts_.dropped += spans;
    return;
  }
  queued_spans_ += spans;
  changed_.notify_all();
}

SpanCounts SpanExporter::counts() const {
  const MutexLock lock(mutex_);
  return counts_;
}

// Waits for a batch or the end; empty at the end.
std::vector<TracedRequest> SpanExporter::NextBatch() {
  MutexLock lock(mutex_);
  while (queue_.empty() && !stopping_) lock.Wait(changed_);
  const uint64_t end_ns = MonotonicNs() + uint64_t{kPeriod.count()} * 1'000'000;
  while (!stopping_ && queued_spans_ < kMaxBatch && MonotonicNs() < end_ns) {
    lock.WaitFor(changed_, kPeriod);
  }
  std::vector<TracedRequest> batch;
  for (size_t spans = 0; !queue_.empty() && spans < kMaxBatch; queue_.pop_front()) {
    spans += NumSpans(queue_.front().trace);
    batch.push_back(std::move(queue_.front()));
  }
  return batch;
}

bool SpanExporter::Send(const std::vector<TracedRequest>& batch) noexcept {
  try {
    const int64_t offset_ns = UnixNs() - static_cast<int64_t>(MonotonicNs());
    const Status sent = poster_->Post(Dump(OtlpJson(batch, source_, offset_ns)), kTimeout);
    if (!sent) {
      const bool warns = MonotonicNs() >= next_warning_ns_;
      if (warns) next_warning_ns_ = MonotonicNs() + kWarningPeriodNs;
      Log(warns ? LogLevel::kWarning : LogLevel::kDebug, "spans were not sent",
          LogField("reason", sent.error().message));
    }
    return sent.has_value();
  } catch (...) {  // no memory
    return false;
  }
}

void SpanExporter::Run() noexcept {
  for (;;) {
    std::vector<TracedRequest> batch;
    try {
      batch = NextBatch();
    } catch (...) {  // no memory: what is left waits for the next try
      continue;
    }
    if (batch.empty()) break;
    const bool sent = Send(batch);
    const size_t spans = NumSpansOf(batch);
    const MutexLock lock(mutex_);
    queued_spans_ -= spans;
    (sent ? counts_.sent : counts_.failed) += spans;
  }
  const MutexLock lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

}  // namespace kvasir
