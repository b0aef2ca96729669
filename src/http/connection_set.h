// ConnectionSet: the connections that a server has open.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/byte_budget.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "http/request_memory.h"

namespace kvasir {

// A connection that has waited less than this may be about to send its request (kFreshMs) or to
// read its answer (kStalledMs).
inline constexpr uint32_t kFreshMs = 250, kStalledMs = 500;

// A connection as the set sees it. It adds itself at its start and removes itself at its end.
class ConnectionHandle {
 public:
  virtual ~ConnectionHandle() = default;
  // Ends the connection, after the current answer if there is one. Any thread.
  virtual void Finish() = 0;
  // Ends the connection if ConnectionSet::IsClosing is still true. Any thread.
  virtual void CloseForRoom() = 0;
  // Ends the generation of a request whose key is not valid any more, after keys were reloaded. Any
  // thread.
  virtual void CheckKey() {}
};

// A connection's reason to wait for its client.
enum class Waits {
  kForRequest,  // the next request, or the end of the connection
  kForRest,     // the rest of a request: its headers, then its body
  kForClient,   // until the client reads the answer
  kNot,         // nothing: its request is being answered
};

// The open connections. Thread-safe.
class ConnectionSet {
 public:
  ConnectionSet(uint64_t max_body_bytes, uint64_t max_answer_bytes, uint64_t max_metrics_bytes,
                uint64_t (*now_ns)() = MonotonicNs)
      : now_ns_(now_ns),
        bodies_(std::make_shared<ByteBudget>(max_body_bytes)),
        answers_(std::make_shared<ByteBudget>(max_answer_bytes)),
        metrics_(std::make_shared<ByteBudget>(max_metrics_bytes)) {}
  void Add(std::shared_ptr<ConnectionHandle> connection);
  void Remove(const ConnectionHandle* connection);
  size_t size() const;
  void FinishAll();  // call it until size() is 0
  void CheckKeys();  // calls CheckKey of all

  // Says what a connection begins to wait for. After Add it waits for a request.
  void Set(const ConnectionHandle* connection, Waits waits);
  // Closes up to `count` connections: first those that have waited for a request for kFreshMs; then
  // all slow ones, which wait for a request or its rest, or whose client has read nothing for
  // kStalledMs. Within each kind it closes those that have waited longest. It never closes a
  // connection whose request is being answered.
  // Returns how many it closes; they remove themselves from the set later, on their strands.
  size_t MakeRoom(size_t count);
  // Tells whether MakeRoom chose the connection and it has not read a request since.
  bool IsClosing(const ConnectionHandle* connection) const;
  size_t num_closing() const;
  size_t num_staying() const;  // size() - num_closing()

  // Returns a budget: all large bodies in memory share max_body_bytes, and all large answers that
  // are not sent yet share max_answer_bytes: without a limit a thousand connections would fill any
  // machine. Metrics that find no room among the answers share max_metrics_bytes. A connection that
  // is cut off when the server stops may outlive the set, and holds its bytes that long.
  const std::shared_ptr<ByteBudget>& bodies() const { return bodies_; }
  const std::shared_ptr<ByteBudget>& answers() const { return answers_; }
  const std::shared_ptr<ByteBudget>& metrics() const { return metrics_; }

 private:
  struct Entry {
    std::shared_ptr<ConnectionHandle> connection;
    Waits waits;
    uint64_t since_ns;  // monotonic clock; for headers and body: the time when the headers began
    bool closing = false;
  };
  void StopClosing(const ConnectionHandle* connection);

  uint64_t (*const now_ns_)();
  const std::shared_ptr<ByteBudget> bodies_, answers_, metrics_;
  mutable Mutex mutex_;
  size_t num_closing_ KV_GUARDED_BY(mutex_) = 0;
  std::unordered_map<const ConnectionHandle*, Entry> open_ KV_GUARDED_BY(mutex_);
};

// The bytes that a connection holds of one of the set's budgets. Up to kSmallBodyBytes belong to
// the connection and count as 0. Thread-compatible.
class HeldBytes {
 public:
  explicit HeldBytes(std::shared_ptr<ByteBudget> budget)
      : budget_(std::move(budget)), share_(*budget_) {}

  // Changes the bytes held, up or down. False when there is no room now; then they do not change.
  bool Hold(uint64_t bytes) { return share_.Resize(bytes <= kSmallBodyBytes ? 0 : bytes); }
  // Holds `bytes`, but never less than before.
  bool HoldMore(uint64_t bytes) { return bytes <= share_.bytes() || Hold(bytes); }

 private:
  const std::shared_ptr<ByteBudget> budget_;
  ByteShare share_;
};

}  // namespace kvasir
