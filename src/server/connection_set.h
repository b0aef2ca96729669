// ConnectionSet: the connections that a server has open.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>

#include "base/mutex.h"

namespace kvasir {

// What the server holds of a connection. It keeps itself in the set from Start to its end.
class ConnectionHandle {
 public:
  virtual ~ConnectionHandle() = default;
  // Ends the connection, after the answer it is writing if there is one. Any thread.
  virtual void Finish() = 0;
  // Ends it if it waits for a request. Any thread.
  virtual void CloseIfIdle() = 0;
};

// The connections that are open. Thread-safe.
class ConnectionSet {
 public:
  ConnectionSet(uint64_t max_body_bytes, uint64_t max_answer_bytes)
      : bodies_{max_body_bytes}, answers_{max_answer_bytes} {}
  void Add(std::shared_ptr<ConnectionHandle> connection);
  void Remove(const ConnectionHandle* connection);
  size_t size() const;
  void FinishAll();

  // A connection begins to wait for a request, or no longer does. It does when it is added.
  void SetIdle(const ConnectionHandle* connection);
  void SetBusy(const ConnectionHandle* connection);
  // Closes the one that has waited longest, if any waits.
  void CloseLongestIdle();

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
    uint64_t idle_since;  // by idle_clock_; 0: busy
  };
  static bool Hold(Budget& budget, uint64_t held, uint64_t wanted);

  mutable Mutex mutex_;
  Budget bodies_ KV_GUARDED_BY(mutex_), answers_ KV_GUARDED_BY(mutex_);
  uint64_t idle_clock_ KV_GUARDED_BY(mutex_) = 0;  // ticks at each SetIdle
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
