// RemoteWriter: seals values, stores them, and erases what a fleet's store has of an owner.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "remote/remote_looker.h"
#include "remote/remote_store.h"

namespace kvasir {

// Begin to End, and Flush to Forget, are Tier's functions of these names; one thread of the tier
// runs Loop.
class RemoteWriter {
 public:
  RemoteWriter(RemoteStore& store, RemoteLooker& looker) : store_(store), looker_(looker) {}

  tl::expected<WriteId, WriteRefusal> Begin(const RecordFacts& facts);
  void Seal(WriteId write, std::span<const std::byte> payload);
  void End(WriteId write);
  void Flush(std::function<void(Result<TierFlushed>)> done);
  void Erase(const Digest& owner, std::function<void(Result<TierErased>)> done);
  void Forget(ForgetFacts facts, std::function<void(Result<TierErased>)> done);
  // Works until the store ends, and answers then all that wait.
  void Loop();

 private:
  static constexpr uint64_t kUnsentBytes = uint64_t{4} << 20;  // of a batch
  static constexpr uint64_t kAnswerNs = 10'000'000'000, kRetryNs = 60'000'000'000;
  struct Flushing {
    uint64_t number = 0, stored_before = 0, failed_before = 0;
    std::function<void(Result<TierFlushed>)> done;
  };
  using Done = std::function<void(Result<TierErased>)>;
  // An erase of an owner, or a forget of records.
  struct Removal {
    Digest owner{};
    std::optional<ForgetFacts> forget;
    Done done;  // empty: it has answered
    uint64_t due_ns = 0, start_ns = 0;
    uint64_t epoch = 0;       // that an erase has raised; 0: not yet
    bool is_counted = false;  // in RemoteOwner's num_erases or num_forgets
  };
  // Keys of blocks that forgets hold which wait, 2 MiB of them. With more, a forget becomes an
  // erase, which holds none.
  static constexpr size_t kMostKeys = 65'536;

  std::optional<WriteRefusal> Refusal(const RecordFacts& facts) KV_REQUIRES(store_.mutex);
  bool WaitForWork();
  bool Connect();
  void WriteBatch(const std::vector<uint32_t>& batch);
  std::vector<uint32_t> TakeBatch();
  void DropQueued();
  void AnswerFlushes();
  void RemoveDue();
  Result<TierErased> EraseOwner(Removal& removal);
  Result<OwnerEpoch> RaiseEpoch(const Digest& owner);
  Result<uint64_t> RemoveNames(Removal& removal);
  Result<TierErased> ForgetNames(const Removal& removal);
  Result<std::string> ScanPage(const std::string& owner_name, const std::string& cursor,
                               uint64_t* removed);
  // Sends the commands that remove names.
  Status SendUnlinks(std::span<const std::string> names);
  // Reads the replies, and returns how many names there were.
  Result<uint64_t> ReadUnlinked(size_t commands);
  void Add(Removal removal);
  void Queue(Removal removal) KV_REQUIRES(store_.mutex);
  // Counts a removal at its owner: until it has succeeded nothing of the owner is used.
  void Count(Removal* removal) KV_REQUIRES(store_.mutex);
  // Ends that.
  void Uncount(Removal* removal) KV_REQUIRES(store_.mutex);

  RemoteStore& store_;
  RemoteLooker& looker_;
  RedisConnection connection_;
  UsualTime usual_;  // of a reply
  uint64_t began_ns_ = 0;
  const RedisConnection::Waits waits_ = store_.WaitsOf(began_ns_, usual_);
  std::deque<Flushing> flushes_ KV_GUARDED_BY(store_.mutex);
  std::deque<Removal> removals_ KV_GUARDED_BY(store_.mutex);
};

}  // namespace kvasir
