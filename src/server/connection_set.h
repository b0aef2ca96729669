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
};

// The connections that are open. Thread-safe.
class ConnectionSet {
 public:
  explicit ConnectionSet(uint64_t max_body_bytes) : max_body_bytes_(max_body_bytes) {}
  void Add(std::shared_ptr<ConnectionHandle> connection);
  void Remove(const ConnectionHandle* connection);
  size_t size() const;
  void FinishAll();

  // Large bodies that are in memory at once share max_body_bytes: a thousand connections with one
  // each would not fit any machine. False: no room now.
  bool TakeBodyBytes(uint64_t bytes);
  void GiveBodyBytes(uint64_t bytes);

 private:
  const uint64_t max_body_bytes_;
  uint64_t body_bytes_ = 0;
  mutable std::mutex mutex_;
  std::unordered_map<const ConnectionHandle*, std::shared_ptr<ConnectionHandle>> open_;
};

}  // namespace kvasir
