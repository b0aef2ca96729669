// SpanExporter: sends the spans of requests to a collector (OTLP over HTTP, JSON).
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "kvasir/status.h"
#include "observe/json_poster.h"
#include "observe/metrics.h"
#include "observe/request_spans.h"

namespace kvasir {

// Where spans go: http only; a collector on the same machine does TLS.
struct CollectorAddress {
  std::string host, port, path;
  std::vector<TracePair> headers = {};
};
// Parses "http://HOST[:PORT][/PATH]"; the port is 4318 and the path /v1/traces unless it says
// otherwise. kInvalidArgument, about otlp_traces_endpoint.
Result<CollectorAddress> ParseCollectorAddress(std::string_view url);

// A queue of at most kMaxSpans spans, and a thread that sends them, kMaxBatch or a second's worth
// at a time. Nothing waits for the collector: what the queue has no room for is dropped, what the
// collector does not take within ten seconds is not sent again; both are counted, and the log has a
// warning a minute. The name of its host is resolved once. The destructor takes at most two seconds
// for what is left. Thread-safe.
class SpanExporter {
 public:
  static constexpr size_t kMaxSpans = 2048, kMaxBatch = 512;

  // kInvalidArgument, about otlp_traces_endpoint: no such host. kExhausted: no thread.
  static Result<std::unique_ptr<SpanExporter>> Start(const CollectorAddress& address,
                                                     SpanSource source);
  ~SpanExporter();
  SpanExporter(const SpanExporter&) = delete;
  SpanExporter& operator=(const SpanExporter&) = delete;

  void Add(TracedRequest request) noexcept;
  SpanCounts counts() const;

 private:
  SpanExporter(std::unique_ptr<JsonPoster> poster, SpanSource source);
  void Run() noexcept;
  std::vector<TracedRequest> NextBatch();
  bool Send(const std::vector<TracedRequest>& batch) noexcept;

  const SpanSource source_;
  const std::unique_ptr<JsonPoster> poster_;
  mutable Mutex mutex_;
  std::condition_variable changed_;
  std::deque<TracedRequest> queue_ KV_GUARDED_BY(mutex_);
  size_t queued_spans_ KV_GUARDED_BY(mutex_) = 0;  // also those that are being sent
  SpanCounts counts_ KV_GUARDED_BY(mutex_);
  bool stopping_ KV_GUARDED_BY(mutex_) = false;
  bool stopped_ KV_GUARDED_BY(mutex_) = false;
  uint64_t next_warning_ns_ = 0;  // of the thread
  std::thread thread_;
};

}  // namespace kvasir
