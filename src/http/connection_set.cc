#include "http/connection_set.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "base/until_done.h"
#include "http/request_memory.h"

namespace kvasir {

namespace {

enum class Turn { kIdle, kSlow };

// Returns the turn in which a connection that has waited for so long may be closed. Absent: it
// stays.
std::optional<Turn> TurnOf(Waits waits, uint64_t waited_ns) {
  const uint64_t waited_ms = waited_ns / 1'000'000;
  switch (waits) {
    case Waits::kForRequest:
      return waited_ms >= kFreshMs ? Turn::kIdle : Turn::kSlow;
    case Waits::kForRest:
      return Turn::kSlow;
    case Waits::kForClient:
      return waited_ms >= kStalledMs ? std::optional(Turn::kSlow) : std::nullopt;
    case Waits::kNot:
      return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

void ConnectionSet::Add(std::shared_ptr<ConnectionHandle> connection) {
  const MutexLock lock(mutex_);
  const ConnectionHandle* key = connection.get();
  open_.emplace(key, Entry{std::move(connection), Waits::kForRequest, now_ns_()});
}

void ConnectionSet::Remove(const ConnectionHandle* connection) {
  std::shared_ptr<ConnectionHandle> last;  // destroyed outside the lock
  const MutexLock lock(mutex_);
  const auto it = open_.find(connection);
  if (it == open_.end()) return;
  last = std::move(it->second.connection);
  if (it->second.closing) --num_closing_;
  open_.erase(it);
}

size_t ConnectionSet::size() const {
  const MutexLock lock(mutex_);
  return open_.size();
}

size_t ConnectionSet::num_closing() const {
  const MutexLock lock(mutex_);
  return num_closing_;
}

size_t ConnectionSet::num_staying() const {
  const MutexLock lock(mutex_);
  return open_.size() - num_closing_;
}

void ConnectionSet::Set(const ConnectionHandle* connection, Waits waits) {
  const uint64_t now_ns = now_ns_();
  const MutexLock lock(mutex_);
  const auto it = open_.find(connection);
  if (it == open_.end()) return;
  Entry& entry = it->second;
  entry.waits = waits;
  entry.since_ns = now_ns;
  if (waits != Waits::kNot || !entry.closing) return;
  entry.closing = false;
  --num_closing_;
}

bool ConnectionSet::IsClosing(const ConnectionHandle* connection) const {
  const MutexLock lock(mutex_);
  const auto it = open_.find(connection);
  return it != open_.end() && it->second.closing;
}

size_t ConnectionSet::MakeRoom(size_t count) {
  const uint64_t now_ns = now_ns_();
  std::vector<std::shared_ptr<ConnectionHandle>> chosen;
  {
    const MutexLock lock(mutex_);
    std::vector<std::tuple<Turn, uint64_t, Entry*>> waiting;  // turn, since when
    for (auto& [key, entry] : open_) {
      const std::optional<Turn> turn =
          TurnOf(entry.waits, now_ns - std::min(now_ns, entry.since_ns));
      if (turn && !entry.closing) waiting.emplace_back(*turn, entry.since_ns, &entry);
    }
    count = std::min(count, waiting.size());
    const auto end = waiting.begin() + static_cast<std::ptrdiff_t>(count);
    std::partial_sort(waiting.begin(), end, waiting.end());
    chosen.reserve(count);
    for (size_t i = 0; i < count; ++i) {
      Entry& entry = *std::get<Entry*>(waiting[i]);
      entry.closing = true;
      ++num_closing_;
      chosen.push_back(entry.connection);
    }
  }
  for (const auto& connection : chosen) {
    try {
      connection->CloseForRoom();
    } catch (...) {  // no memory to close it: it stays
      StopClosing(connection.get());
    }
  }
  return count;
}

void ConnectionSet::StopClosing(const ConnectionHandle* connection) {
  const MutexLock lock(mutex_);
  const auto it = open_.find(connection);
  if (it == open_.end() || !it->second.closing) return;
  it->second.closing = false;
  --num_closing_;
}

void ConnectionSet::FinishAll() {
  const MutexLock lock(mutex_);
  for (const auto& [key, entry] : open_) {
    try {
      entry.connection->Finish();
    } catch (...) {  // no memory: the next call retries
    }
  }
}

void ConnectionSet::CheckKeys() {
  const MutexLock lock(mutex_);
  for (const auto& [key, entry] : open_) {
    UntilDone([&] { entry.connection->CheckKey(); });
  }
}

}  // namespace kvasir
