// DiskTier: records in the files of a folder: encrypted, capped, and found again after a crash.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "tier/disk_tier_options.h"
#include "tier/progress_call.h"
#include "tier/record_reader.h"
#include "tier/record_sealer.h"
#include "tier/storage.h"
#include "tier/store.h"
#include "tier/store_keeper.h"
#include "tier/tier.h"

namespace kvasir {

// A front of the parts of an open store (StoreKeeper, RecordReader), and their two threads: the
// *writer*, which writes, syncs, makes room, erases and opens the store, and the *reader*. The
// class's thread rules are Tier's.
//
// A call of the storage may never return. Only the two threads make such calls once the tier is
// open; Close abandons a tier whose threads do not end.
class DiskTier : public Tier {
 public:
  static constexpr uint64_t kBesideBytes = Store::kBesideBytes,
                            kSessionBytes = Store::kSessionBytes;

  // Opens the folder and reads what the store has. kInvalidArgument, kPermissionDenied, kIoError,
  // ...: the folder cannot be used, and why. Where another process has the store, the
  // state is waiting. `storage` must outlive the tier.
  static Result<std::unique_ptr<DiskTier>> Open(const DiskTierOptions& options, Storage& storage);
  // Waits for the threads, as long as a call of the storage takes. Close does not.
  ~DiskTier() override;
  // Ends the tier and its storage, without waiting for what is queued (Flush does). False: a thread
  // has not ended within `patience`. Tier and storage then stay until it does, or until the process
  // ends; on_progress is not called any more, and all whose answers are missing have kUnavailable,
  // but an erase that is being done may still answer later. REQUIRES: the tier was opened with
  // *storage.
  static bool Close(std::unique_ptr<DiskTier> tier, std::unique_ptr<Storage> storage,
                    std::chrono::milliseconds patience);

  // Lowers what memory depends on, where the options leave it open, until index and buffers take at
  // most so many bytes, or no less is possible. O(log of the cap).
  static void FitMemory(uint64_t bytes, DiskTierOptions* options);
  // Returns what Open allocates for its index: of the options alone.
  static uint64_t IndexBytes(const DiskTierOptions& options) { return Store::IndexBytes(options); }
  static uint64_t BufferBytes(const DiskTierOptions& options) {
    return Store::BufferBytes(options);
  }
  // Returns what of the cap the most records can fill; the cap, unless kMaxDiskBlocks is the limit.
  static uint64_t UsableBytes(const DiskTierOptions& options);
  // Returns the least cap that holds two segments and what is kept beside them.
  static uint64_t MinCapBytes(const RecordShape& shape);

  bool Has(const RecordName& name) const override;
  void Touch(const RecordName& name) override;
  bool ReadyOwner(const Digest& owner) override;
  tl::expected<WriteId, WriteRefusal> BeginWrite(const RecordFacts& facts) override;
  void Seal(WriteId write, std::span<const std::byte> payload) override;
  void EndWrite(WriteId write) override;
  void CountDropped(WriteRefusal why, uint32_t store) override;
  std::optional<ReadId> BeginRead(const RecordName& name) override;
  bool HasReadRoom() const override;
  ReadState StateOf(ReadId read) const override;
  bool Unseal(ReadId read, const RecordFacts& facts, std::span<std::byte> payload) const override;
  void EndRead(ReadId read, ReadEnd end) override;
  void set_on_progress(std::function<void()> on_progress) override;
  void Flush(std::function<void(Result<TierFlushed>)> done) override;
  void Erase(const Digest& owner, std::function<void(Result<TierErased>)> done) override;
  void Forget(ForgetFacts facts, std::function<void(Result<TierErased>)> done) override;
  TierStats Stats() const override;
  // Makes segments leave so many bytes of the cap to the folder's sessions, within a second.
  // Thread-safe; does not wait.
  void Reserve(uint64_t bytes);

  // Returns the owners whose keys it has. Thread-safe.
  std::vector<Digest> Owners() const;
  // Returns the store's folder.
  std::string store_folder() const;

  // Does all that is due. REQUIRES: options.threads == 0.
  void RunPending();
  // Returns whether the index and the slots agree; for tests.
  bool CheckInvariants() const;

 private:
  explicit DiskTier(std::unique_ptr<Store> store);

  Result<std::thread> StartThreadOf(void (DiskTier::*loop)());
  void WriterLoop();
  void ReaderLoop();
  bool ReaderStep();
  void EndThread();
  void Stop();
  bool WaitForThreads(std::chrono::milliseconds patience);
  void LeaveClosed();

  std::unique_ptr<Storage> owned_storage_;  // of Close; destroyed last
  const std::unique_ptr<Store> owned_store_;
  Store& store_;
  ProgressCall progress_;
  RecordReader reader_;
  RecordSealer sealer_;
  StoreKeeper keeper_;
  std::condition_variable thread_ended_;
  uint32_t threads_running_ KV_GUARDED_BY(store_.mutex) = 0;  // that use this object
  bool is_left_ KV_GUARDED_BY(store_.mutex) = false;  // by Close: the last thread destroys it
  bool has_left_ = false;                             // LeaveClosed was called; the writer's
  std::thread writer_thread_, reader_thread_;
};

}  // namespace kvasir
