// KvEventPublisher: the thread that tells routers which blocks the pool holds.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/descriptor.h"
#include "cache/kv_event_log.h"
#include "events/event_sockets.h"
#include "events/event_stream.h"
#include "kvasir/kv_events.h"
#include "kvasir/status.h"
#include "kvasir/tenant.h"

namespace kvasir {

// Opened before the model is loaded, so that a wrong address is found at once; it answers when it
// is started. The thread reads the log, and no lock and no socket ever holds up the cache's thread.
class KvEventPublisher {
 public:
  // Opens the sockets. Errors as EventSockets::Open.
  static Result<std::unique_ptr<KvEventPublisher>> Open(const KvEventsOptions& options);
  // Returns planned memory, with that of the log.
  static uint64_t BytesFor(const KvEventLog::Options& log) {
    return KvEventLog::BytesFor(log) + EventStream::TableBytes(log.num_nodes, log.block_tokens) +
           EventStream::MostPayloadBytes(log.num_nodes, log.block_tokens);
  }

  // Makes what the thread works with. `log` must outlive this. `ask_fill` is called by the
  // publisher's thread, and must have the cache's thread call KvEventLog::Fill for mirror().
  // kIoError where the system gives no random numbers or no descriptor.
  Status Attach(KvEventLog* log, std::function<void()> ask_fill);
  KvEventMirror& mirror() { return stream_->mirror(); }
  // Returns the bytes as planned: what is allocated, and what payloads may take. REQUIRES: Attach
  // succeeded.
  uint64_t bytes() const;
  // Starts the thread. kExhausted where the system refuses it. REQUIRES: Attach succeeded.
  Status Start();
  // Ends the thread. REQUIRES: the cache's thread does not run.
  ~KvEventPublisher();

  // Returns whose blocks are published under these rules; absent: none are, and the log has a
  // warning. Thread-safe.
  std::optional<Digest> OwnerIn(const TenantTable& tenants) const;
  KvEventsStats Stats() const;  // thread-safe

 private:
  // Questions of one round, and those that wait for a snapshot: further ones get an empty answer.
  static constexpr size_t kMostQuestions = 64;

  KvEventPublisher(KvEventsOptions options, std::unique_ptr<EventSockets> sockets)
      : options_(std::move(options)), sockets_(std::move(sockets)) {}
  void Run();
  void Wake() const;
  void Wait();
  void Reopen();
  void Send(const EventBatch& batch);
  void Answer(const EventSockets::Question& question);

  KvEventsOptions options_;                // with the addresses that clients connect to
  std::unique_ptr<EventSockets> sockets_;  // nullptr while they cannot be opened again
  KvEventLog* log_ = nullptr;
  std::unique_ptr<EventStream> stream_;
  uint64_t log_bytes_ = 0;
  uint64_t payload_bytes_ = 0;
  Descriptor wake_;
  std::vector<std::string> waiting_;  // clients of questions
  bool is_refused_ = false;           // Reopen failed, and has said so
  // The counters are statistics, and nothing else depends on them: relaxed.
  std::atomic<uint64_t> sent_ = 0, snapshot_ = 0, replayed_ = 0;
  std::atomic<bool> stops_ = false;  // acquire: what came before the destructor
  std::thread thread_;
};

}  // namespace kvasir
