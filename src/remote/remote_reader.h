// RemoteReader: brings values from a fleet's store into buffers, and unseals them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

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
  bool Unseal(ReadId read, const RecordFacts& facts, std::span<std::byte> payload) const;
  void End(ReadId read, ReadEnd end);
  // Works until the store ends.
  void Loop();

 private:
  static constexpr uint64_t kUnreadBytes = uint64_t{8} << 20;
  bool WaitForWork();
  // Takes queued reads, and returns what is to be asked for.
  std::vector<StoreRequest> TakeNext();
  void ReadNext();
  // Fails what was asked for: the client is closed.
  void FailAsked(const Error& error);
  void FailAll();

  RemoteStore& store_;
  const std::unique_ptr<StoreClient> client_ = store_.NewClient();
  UsualTime usual_;  // from one reply to the next
  uint64_t began_ns_ = 0;
  const StoreClient::Waits waits_ = store_.WaitsOf(began_ns_, usual_);
  std::vector<uint32_t> asked_;  // buffers whose replies have not come; Loop's alone
};

}  // namespace kvasir
