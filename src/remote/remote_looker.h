// RemoteLooker: connects a remote tier, finds out what its store has, and keeps owners' epochs.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "remote/owner_object.h"
#include "remote/remote_store.h"

namespace kvasir {

// One thread of the tier runs Loop; Begin is the engine's.
class RemoteLooker {
 public:
  explicit RemoteLooker(RemoteStore& store) : store_(store) {}

  // Tier::Look.
  bool Begin(LookFor what, std::function<void()> done);
  // Works until the store ends, and calls then all that wait.
  void Loop();
  // Brings what is known of an owner and what the store has together; other threads may call it
  // with clients of theirs.
  Status SyncOwner(StoreClient& client, const Digest& owner, const StoreClient::Waits& waits);

 private:
  struct Look {
    LookFor what;
    std::function<void()> done;
  };
  // What is asked of the store for a lookup.
  struct Round {
    std::span<const RecordName> names;
    std::vector<uint32_t> picks;  // indices of names
    std::vector<bool> found;      // [picks]
  };
  static constexpr size_t kMostLooks = 64;
  static constexpr uint32_t kPicks = 32, kAskedAtOnce = 512;
  static constexpr uint64_t kPollNs = 10'000'000'000;

  bool WaitForWork();
  void WriteNotes();
  void EraseAgain();
  void TryConnect();
  // Opens the client where it is closed, or was while nothing was asked.
  Status Connect();
  Status Probe(const StoreClient::Waits& waits);
  // Begins as many connections as a lookup has on S3, so that the first one does not wait for their
  // handshakes.
  Status ConnectAhead(const StoreClient::Waits& waits);
  Result<double> ProbeBytesPerS(const StoreClient::Waits& waits);
  void SyncDue();
  void Answer(Look& look);
  Result<uint32_t> FindChain(const LookFor& what);
  Status FindEach(const LookFor& what);
  Status Ask(const Digest& owner, Round& round);
  Status AskOnce(const Digest& owner, Round& round, bool* is_old);
  void Mark(const LookFor& what, std::span<const uint32_t> found);
  Status Settle(StoreClient& client, const Digest& owner, const std::string& name,
                const StoredOwner& stored, const StoreClient::Waits& waits);
  void Adopt(const Digest& owner, const OwnerEpoch& stored, uint64_t least);

  RemoteStore& store_;
  HostLookup lookup_;
  const std::unique_ptr<StoreClient> client_ = store_.NewClient();
  UsualTime usual_;  // of a round
  uint64_t began_ns_ = 0;
  const StoreClient::Waits waits_ = store_.WaitsOf(began_ns_, usual_);
  uint64_t polled_ns_ = 0;
  std::deque<Look> looks_ KV_GUARDED_BY(store_.mutex);
};

}  // namespace kvasir
