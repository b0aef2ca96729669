#include "server/connection_set.h"

#include <utility>

#include "server/request_memory.h"

namespace kvasir {

void ConnectionSet::Add(std::shared_ptr<ConnectionHandle> connection) {
  const MutexLock lock(mutex_);
  const ConnectionHandle* key = connection.get();
  open_.emplace(key, Entry{std::move(connection), ++idle_clock_});
}

void ConnectionSet::Remove(const ConnectionHandle* connection) {
  std::shared_ptr<ConnectionHandle> last;  // destroyed outside the lock
  const MutexLock lock(mutex_);
  const auto it = open_.find(connection);
  if (it == open_.end()) return;
  last = std::move(it->second.connection);
  open_.erase(it);
}

size_t ConnectionSet::size() const {
  const MutexLock lock(mutex_);
  return open_.size();
}

void ConnectionSet::SetIdle(const ConnectionHandle* connection) {
  const MutexLock lock(mutex_);
  const auto it = open_.find(connection);
  if (it != open_.end()) it->second.idle_since = ++idle_clock_;
}

void ConnectionSet::SetBusy(const ConnectionHandle* connection) {
  const MutexLock lock(mutex_);
  const auto it = open_.find(connection);
  if (it != open_.end()) it->second.idle_since = 0;
}

void ConnectionSet::CloseLongestIdle() {
  const MutexLock lock(mutex_);
  Entry* longest = nullptr;
  for (auto& [key, entry] : open_) {
    if (entry.idle_since == 0) continue;
    if (longest == nullptr || entry.idle_since < longest->idle_since) longest = &entry;
  }
  if (longest == nullptr) return;
  longest->idle_since = 0;  // closing
  longest->connection->CloseIfIdle();
}

bool ConnectionSet::HoldBodyBytes(uint64_t held, uint64_t wanted) {
  const MutexLock lock(mutex_);
  return Hold(bodies_, held, wanted);
}

bool ConnectionSet::HoldAnswerBytes(uint64_t held, uint64_t wanted) {
  const MutexLock lock(mutex_);
  return Hold(answers_, held, wanted);
}

bool ConnectionSet::Hold(Budget& budget, uint64_t held, uint64_t wanted) {
  const uint64_t others = budget.held_bytes - held;
  if (wanted > held && wanted > budget.max_bytes - others) return false;
  budget.held_bytes = others + wanted;
  return true;
}

void ConnectionSet::FinishAll() {
  const MutexLock lock(mutex_);
  for (const auto& [key, entry] : open_) entry.connection->Finish();
}

bool HeldBytes::Hold(uint64_t bytes) {
  if (bytes <= kSmallBodyBytes) bytes = 0;
  if (bytes == bytes_) return true;
  if (!(set_.*change_)(bytes_, bytes)) return false;
  bytes_ = bytes;
  return true;
}

}  // namespace kvasir
