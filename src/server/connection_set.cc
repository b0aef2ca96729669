#include "server/connection_set.h"

#include <utility>

namespace kvasir {

void ConnectionSet::Add(std::shared_ptr<ConnectionHandle> connection) {
  const std::lock_guard lock(mutex_);
  const ConnectionHandle* key = connection.get();
  open_.emplace(key, std::move(connection));
}

void ConnectionSet::Remove(const ConnectionHandle* connection) {
  std::shared_ptr<ConnectionHandle> last;  // destroyed outside the lock
  const std::lock_guard lock(mutex_);
  const auto it = open_.find(connection);
  if (it == open_.end()) return;
  last = std::move(it->second);
  open_.erase(it);
}

size_t ConnectionSet::size() const {
  const std::lock_guard lock(mutex_);
  return open_.size();
}

bool ConnectionSet::TakeBodyBytes(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (bytes > max_body_bytes_ - body_bytes_) return false;
  body_bytes_ += bytes;
  return true;
}

void ConnectionSet::GiveBodyBytes(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  body_bytes_ -= bytes;
}

void ConnectionSet::FinishAll() {
  const std::lock_guard lock(mutex_);
  for (const auto& [key, connection] : open_) connection->Finish();
}

}  // namespace kvasir
