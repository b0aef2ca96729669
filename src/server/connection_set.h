// ConnectionSet: the connections that a server has open.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

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
  bool HoldBodyBytes(uint64_t held, uint64_t wanted) { return Hold(bodies_, held, wanted); }
  bool HoldAnswerBytes(uint64_t held, uint64_t wanted) { return Hold(answers_, held, wanted); }

 private:
  struct Budget {
    const uint64_t max_bytes;
    uint64_t held_bytes = 0;
  };
  struct Entry {
    std::shared_ptr<ConnectionHandle> connection;
    uint64_t idle_since;  // by idle_clock_; 0: busy
  };
  bool Hold(Budget& budget, uint64_t held, uint64_t wanted);

  mutable std::mutex mutex_;  // guards what follows
  Budget bodies_, answers_;
  uint64_t idle_clock_ = 0;  // ticks at each SetIdle
  std::unordered_map<const ConnectionHandle*, Entry> open_;
};

}  // namespace kvasir
