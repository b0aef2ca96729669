// ConnectionSet: the connections that a server has open.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"

namespace kvasir {

// Before that a client may be about to send its request, or to take what was written.
inline constexpr uint32_t kFreshMs = 250, kStalledMs = 500;

// What the server holds of a connection. It keeps itself in the set from Start to its end.
class ConnectionHandle {
 public:
  virtual ~ConnectionHandle() = default;
  // Ends the connection, after the answer it is writing if there is one. Any thread.
  virtual void Finish() = 0;
  // Ends it if ConnectionSet::IsClosing still says so. Any thread.
  virtual void CloseForRoom() = 0;
};

// What a connection waits for from its client.
enum class Waits {
  kForRequest,  // the next one, or that the client hangs up
  kForRest,     // of a request: its head, then its body
  kForClient,   // to take what is written
  kNot,         // its request is being answered
};

// The connections that are open. Thread-safe.
class ConnectionSet {
 public:
  ConnectionSet(uint64_t max_body_bytes, uint64_t max_answer_bytes,
                uint64_t (*now_ns)() = MonotonicNs)
      : now_ns_(now_ns), bodies_{max_body_bytes}, answers_{max_answer_bytes} {}
  void Add(std::shared_ptr<ConnectionHandle> connection);
  void Remove(const ConnectionHandle* connection);
  size_t size() const;
  void FinishAll();  // call it until size() is 0

  // A connection begins to wait. When it is added it waits for a request.
  void Set(const ConnectionHandle* connection, Waits waits);
  // Closes up to `count` connections: first those that wait for a request for kFreshMs; then all
  // that are slow: they wait for a request or its rest, or their client takes nothing for
  // kStalledMs. Of each kind those go first that have waited longest. One whose request is being
  // answered stays.
  // Returns how many; they leave the set when their strands come to it.
  size_t MakeRoom(size_t count);
  // Whether MakeRoom chose it, and its request has not been read meanwhile.
  bool IsClosing(const ConnectionHandle* connection) const;
  size_t num_closing() const;
  size_t num_staying() const;  // size() without those

  // Large bodies that are in memory at once share max_body_bytes, and large answers that are being
  // made or not sent yet max_answer_bytes: a thousand connections with one each would not fit any
  // machine. Changes what a connection holds from `held` to `wanted`; false: no room now.
  bool HoldBodyBytes(uint64_t held, uint64_t wanted);
  bool HoldAnswerBytes(uint64_t held, uint64_t wanted);

 private:
  struct Budget {
    const uint64_t max_bytes;
    uint64_t held_bytes = 0;
  };
  struct Entry {
    std::shared_ptr<ConnectionHandle> connection;
    Waits waits;
    uint64_t since_ns;  // the monotonic clock; of a request's head and body: from the head on
    bool closing = false;
  };
  static bool Hold(Budget& budget, uint64_t held, uint64_t wanted);
  void StopClosing(const ConnectionHandle* connection);

  uint64_t (*const now_ns_)();
  mutable Mutex mutex_;
  Budget bodies_ KV_GUARDED_BY(mutex_), answers_ KV_GUARDED_BY(mutex_);
  size_t num_closing_ KV_GUARDED_BY(mutex_) = 0;
  std::unordered_map<const ConnectionHandle*, Entry> open_ KV_GUARDED_BY(mutex_);
};

// What a connection holds of one of the set's two budgets. Hold(0) gives it back, its end does not:
// a connection that is cut off when the server stops may outlive the set. Thread-compatible.
class HeldBytes {
 public:
  using Change = bool (ConnectionSet::*)(uint64_t held, uint64_t wanted);
  HeldBytes(ConnectionSet& set, Change change) : set_(set), change_(change) {}
  HeldBytes(const HeldBytes&) = delete;
  HeldBytes& operator=(const HeldBytes&) = delete;

  // Holds so many, more or less than before; up to kSmallBodyBytes are the connection's own and
  // count as none. False: there is no room for so much now, and it holds what it did.
  bool Hold(uint64_t bytes);
  // The same, but never less than before.
  bool HoldMore(uint64_t bytes) { return bytes <= bytes_ || Hold(bytes); }

 private:
  ConnectionSet& set_;
  const Change change_;
  uint64_t bytes_ = 0;
};

}  // namespace kvasir
