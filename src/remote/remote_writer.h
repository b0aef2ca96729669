// RemoteWriter: seals values, stores them, and erases what a fleet's store has of an owner.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "remote/daily_note.h"
#include "remote/remote_looker.h"
#include "remote/remote_store.h"
#include "remote/removal_notes.h"

namespace kvasir {

// Begin to End, and Flush to Forget, are Tier's functions of these names; one thread of the tier
// runs Loop.
class RemoteWriter {
 public:
  // Keys of blocks that forgets hold which wait, 2 MiB of them with the forgets. With more, a
  // forget becomes an erase, which holds none.
  static constexpr size_t kMostKeys = 65'536;

  // Goes on with the day's count where this machine's last process left it.
  RemoteWriter(RemoteStore& store, RemoteLooker& looker);

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
  struct Flushing {
    uint64_t number = 0, stored_before = 0, bytes_before = 0, failed = 0;
    std::function<void(Result<TierFlushed>)> done;
  };
  using Done = std::function<void(Result<TierErased>)>;
  // An erase of an owner, or a forget of records.
  struct Removal {
    Digest owner{};
    std::optional<ForgetFacts> forget;
    Done done;  // empty: it has answered
    uint64_t due_ns = 0, start_ns = 0;
    uint64_t tried_ns = ~uint64_t{0};  // when the last try began, which failed
    uint64_t epoch = 0;                // that an erase has raised; 0: not yet
    uint64_t removed = 0;              // records, by an erase
    bool is_noted = false;             // in RemovalNotes
    bool is_counted = false;           // in RemoteOwner's num_erases or num_forgets
  };
  static constexpr size_t kKeysOfOne = 16;  // a removal without its keys takes the bytes of so many
  std::optional<WriteRefusal> Refusal(const RecordFacts& facts) KV_REQUIRES(store_.mutex);
  bool WaitForWork();
  bool Connect();
  void WriteBatch(const std::vector<uint32_t>& batch);
  std::vector<uint32_t> TakeBatch();
  void DropQueued();
  void AnswerFlushes();
  // Returns whether a removal is to be tried: at once, each minute, and when the store is back.
  bool IsDue(const Removal& removal) const KV_REQUIRES(store_.mutex);
  void RemoveDue();
  void NoteWaiting();
  // Removes the note where none of the owner waits any more.
  void NoteDone(const Digest& owner);
  Result<TierErased> EraseOwner(Removal& removal);
  Result<OwnerEpoch> RaiseEpoch(const Digest& owner);
  // Removes pages of an owner's names until the store, which is full, has room for a new epoch.
  Result<OwnerEpoch> MakeRoom(Removal& removal, Error full);
  Status RemoveNames(Removal& removal);
  TierErased ErasedBy(const Removal& removal, bool is_complete) const;
  Result<TierErased> ForgetNames(Removal& removal);
  // Asks the same for each of the names, and returns for how many it was done.
  Result<uint64_t> AskEach(StoreRequest::What what, std::span<const std::string> names);
  void Add(Removal removal);
  void Queue(Removal removal) KV_REQUIRES(store_.mutex);
  // Counts a removal at its owner: until it has succeeded nothing of the owner is used.
  void Count(Removal* removal) KV_REQUIRES(store_.mutex);
  // Ends that.
  void Uncount(Removal* removal) KV_REQUIRES(store_.mutex);

  RemoteStore& store_;
  RemoteLooker& looker_;
  const std::unique_ptr<StoreClient> client_ = store_.NewClient();
  DailyNote note_;
  const RemovalNotes notes_;
  UsualTime usual_;  // of a reply
  uint64_t began_ns_ = 0;
  const StoreClient::Waits waits_ = store_.WaitsOf(began_ns_, usual_);
  std::deque<Flushing> flushes_ KV_GUARDED_BY(store_.mutex);
  // Failed writes that an answer has told of, as in StoreFlushes.
  uint64_t told_failed_ KV_GUARDED_BY(store_.mutex) = 0;
  std::deque<Removal> removals_ KV_GUARDED_BY(store_.mutex);
};

}  // namespace kvasir
