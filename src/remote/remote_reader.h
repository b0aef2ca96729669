// RemoteReader: brings values from a fleet's store into buffers, and opens them.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>

#include "remote/remote_store.h"

namespace kvasir {

// Reads are asked for in the order in which they were begun, so many at once that at most 8 MiB are
// unread. Begin to End are Tier's functions of these names; one thread of the tier runs Loop.
class RemoteReader {
 public:
  explicit RemoteReader(RemoteStore& store) : store_(store) {}

  std::optional<ReadId> Begin(const RecordName& name);
  bool HasRoom() const;
  ReadState StateOf(ReadId read) const;
  bool Open(ReadId read, const RecordFacts& facts, std::span<std::byte> payload) const;
  void End(ReadId read, ReadEnd end);
  // Works until the store ends.
  void Loop();

 private:
  static constexpr uint64_t kUnreadBytes = uint64_t{8} << 20;
  struct Asked {
    uint32_t buffer;
    bool refreshes;  // a reply to EXPIRE follows
  };

  bool WaitForWork();
  // Takes queued reads, and returns their commands.
  std::string TakeNext();
  void ReadNext();
  // Fails what was asked for: the connection has ended.
  void FailAsked(const Error& error);
  void FailAll();

  RemoteStore& store_;
  RedisConnection connection_;
  UsualTime usual_;  // from one reply to the next
  uint64_t began_ns_ = 0;
  const RedisConnection::Waits waits_ = store_.WaitsOf(began_ns_, usual_);
  std::deque<Asked> asked_;  // whose replies have not come; Loop's alone
};

}  // namespace kvasir
