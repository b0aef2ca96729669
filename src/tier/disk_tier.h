// DiskTier: records in the files of a folder: encrypted, capped, and found again after a crash.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "tier/disk_tier_options.h"
#include "tier/forget_intent.h"
#include "tier/progress_call.h"
#include "tier/record_reader.h"
#include "tier/storage.h"
#include "tier/store.h"
#include "tier/store_files.h"
#include "tier/tier.h"

namespace kvasir {

// What a store's about.json says: for people and for estimates, never trusted.
struct StoreAbout {
  std::string model, kv_format;
  uint64_t hits = 0;
  double load_bytes_per_s = 0;
  uint64_t written_day = 0, written_bytes = 0;  // days since 1970
  uint64_t last_hour = 0;
};
inline constexpr std::string_view kAboutFileName = "about.json";
inline constexpr uint64_t kMaxAboutBytes = 64 * 1024;
std::string AboutText(const StoreAbout& about);
StoreAbout ParseAbout(const std::string& text);  // what cannot be read keeps its default

// Where a lock is named, it is mutex_, which is never held during I/O or a callback. The *writer*
// (a thread) writes, syncs, makes room, erases, opens the store and keeps its state; the *reader*
// reads. The class's thread rules are Tier's.
//
// State: waiting (another process has the store; asked each second), broken (the folder failed;
// opened anew after 60 s), on; full is on without room for a segment.
//
// A call of the storage may never return. Only the two threads make such calls once the tier is
// open; Close leaves a tier behind whose threads do not end.
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

  // What Open allocates for its index and for its buffers: of the options alone.
  static uint64_t IndexBytes(const DiskTierOptions& options) { return Store::IndexBytes(options); }
  static uint64_t BufferBytes(const DiskTierOptions& options) {
    return Store::BufferBytes(options);
  }
  // What of the cap the most records can fill; the cap, unless kMaxDiskBlocks is the limit.
  static uint64_t UsableBytes(const DiskTierOptions& options);
  // The least cap that holds two segments and what is kept beside them.
  static uint64_t MinCapBytes(const RecordShape& shape);

  bool Has(const RecordName& name) const override;
  void Touch(const RecordName& name) override;
  bool OpenOwner(const Digest& owner) override;
  tl::expected<WriteId, WriteRefusal> BeginWrite(const RecordFacts& facts) override;
  void Seal(WriteId write, std::span<const std::byte> payload) override;
  void EndWrite(WriteId write) override;
  void CountDropped(WriteRefusal why) override;
  std::optional<ReadId> BeginRead(const RecordName& name) override;
  bool HasReadRoom() const override;
  ReadState StateOf(ReadId read) const override;
  bool Open(ReadId read, const RecordFacts& facts, std::span<std::byte> payload) const override;
  void EndRead(ReadId read, ReadEnd end) override;
  void set_on_progress(std::function<void()> on_progress) override;
  void Flush(std::function<void(Result<TierFlushed>)> done) override;
  void Erase(const Digest& owner, std::function<void(Result<TierErased>)> done) override;
  void Forget(ForgetFacts facts, std::function<void(Result<TierErased>)> done) override;
  TierStats Stats() const override;
  // Segments leave so many bytes of the cap to the folder's sessions, at the latest in a second.
  // Thread-safe; does not wait.
  void Reserve(uint64_t bytes);

  // Does all that is due. REQUIRES: options.threads == 0.
  void RunPending();
  // Whether the index and the slots agree; for tests.
  bool CheckInvariants() const;

 private:
  using State = TierStats::State;
  struct FlushJob {
    uint64_t number = 0;  // of the last write that it waits for
    uint64_t blocks = 0, bytes = 0, dropped = 0;
    std::function<void(Result<TierFlushed>)> done;
    std::optional<Result<TierFlushed>> answer = {};  // absent: not known yet
  };
  struct EraseJob {
    EraseJob() = default;
    EraseJob(const EraseJob&) = delete;
    ~EraseJob();  // wipes the tokens

    Digest owner{};
    std::optional<ForgetFacts> path = {};  // a forget; absent: all of the owner
    std::string folder, key_file_name;
    std::optional<OwnerId> id;
    TierErased erased;
    std::function<void(Result<TierErased>)> done;  // empty: it was called
    uint64_t due_ns = 0;                           // when it is tried again; 0: it is new
    std::optional<int> error = {};                 // of the last try
    bool is_done = false;                          // and not told yet
    bool has_intent = false;                       // durable: the next start goes on with it
    // Links, and segments of another version or shape: what it did not reach may be there.
    std::vector<std::string> not_reached;
  };
  explicit DiskTier(std::unique_ptr<Store> store);

  // disk_tier.cc
  void Wake();

  // disk_tier_close.cc: threads, and their end
  Result<std::thread> StartThreadOf(void (DiskTier::*loop)());
  void Stop();
  void EndThread();
  bool WaitForThreads(std::chrono::milliseconds patience);
  void LeaveClosed();
  void RefuseErases();

  // disk_tier_open.cc: states
  Status OpenStore();
  void TellUnread();
  void StayOff(const Error& why);
  Status ScanStore();
  Status AddSegments();
  void ScanSegments(uint32_t thread) noexcept;
  void ScanSegment(uint32_t segment, std::span<std::byte> scratch);
  // An owner's key, and its pads: computed once for many records.
  struct ScannedOwner {
    ScannedOwner() = default;
    ScannedOwner(const ScannedOwner&) = delete;
    ~ScannedOwner();  // wipes both

    std::optional<OwnerId> id;
    OwnerKey key;
    std::optional<HmacKey> sealing;
  };
  void ScanHeader(SlotRef slot, const RecordPlace& expected, uint32_t hour,
                  std::span<const std::byte> header, std::span<std::byte> tokens,
                  ScannedOwner* owner);
  bool PayloadOpens(SlotRef slot, const RecordPublic& record, const OwnerKey& key);
  void DropOrphans() KV_REQUIRES(store_.mutex);
  void RemoveUnusedKeys();
  Status FinishErases(FileId root);
  void LeaveStore(State state, std::string reason);
  void LeaveFailed(std::string reason);
  bool LeaveIfGone();
  StoreAbout AboutNow() KV_REQUIRES(store_.mutex);
  void WriteAbout();
  void WriteHours();

  // disk_tier_write.cc: the writer
  void WriterLoop();
  bool WriterStep();
  bool IsGroupDue() KV_REQUIRES(store_.mutex);
  bool WriteGroup();
  bool MakeSlotsFree(uint32_t slots);
  void GatherGroup() KV_REQUIRES(store_.mutex);
  bool WriteKeysOfGroup();
  void WriteRecords();
  IoStatus WriteRecord(uint32_t buffer, FileId file);
  void UnwriteHeader(uint32_t buffer, FileId file);
  void SyncSegments();
  void EndGroup();
  void FindAnswers();
  bool AnswerFlushes();
  static bool ReportFlush(FlushJob& job);

  void ReaderLoop();
  bool ReaderStep();
  bool HelpToScan();
  // disk_tier_room.cc: cap, free space, time
  // kBusy: another process or the file of sessions has the folder's lock, for a moment.
  enum class GrowEnd : uint8_t { kGrown, kFull, kFailed, kBusy };
  GrowEnd Grow();
  // How many bytes under the cap, or on the device, are missing for `bytes` more. Absent: it could
  // not be found out; counted.
  std::optional<uint64_t> MissingRoom(uint64_t bytes);
  std::optional<uint64_t> MissingSpace(uint64_t bytes);
  std::optional<bool> HasRoomFor(uint64_t bytes);
  std::optional<bool> HasFreeSpace(uint64_t bytes);
  void NoteRoom();
  void KeepRoomToErase(FileId root);
  bool RemoveUnusable();
  bool RemoveForeignSegment();
  bool MakeSegment();
  uint32_t NumActiveStores();
  void GiveBack();
  bool ReleaseSegment(EvictCause cause);
  IoStatus RemoveSegment(uint32_t segment, EvictCause cause);
  void RemoveAbandoned();
  void FitCap();
  void ExpireOld();
  bool Maintain();

  // disk_tier_erase.cc
  bool RunErases();
  IoStatus TryErase(EraseJob& job) noexcept;
  IoStatus RunErase(EraseJob& job);
  static bool ReportErase(EraseJob& job);
  enum class AbandonedSegments : uint8_t { kRemoved, kLeft };
  IoStatus ZeroAllCondemned(AbandonedSegments abandoned);
  IoStatus NoteLinks(FileId root, EraseJob* job);
  bool HasUnreadKeys() const;
  IoStatus CondemnOrphans();
  IoStatus ZeroSlots(uint32_t segment, const std::vector<uint32_t>& slots);

  // disk_tier_forget.cc
  IoStatus RunForget(EraseJob& job);
  std::vector<RecordName> FirstForgotten(const ForgetFacts& facts);
  bool Begins(const SlotRef& slot, const RecordName& name, const OwnerKey& key,
              const ForgetFacts& facts);
  void CondemnForgotten(const ForgetFacts& facts, std::span<const RecordName> firsts,
                        std::span<const BlockKey> kept, TierErased* erased)
      KV_REQUIRES(store_.mutex);
  void CondemnPath(const ForgetFacts& facts, std::span<const BlockKey> kept, TierErased* erased)
      KV_REQUIRES(store_.mutex);
  void Condemn(EntryId entry, TierErased* erased) KV_REQUIRES(store_.mutex);
  ForgetIntent CondemnedSlots() const KV_REQUIRES(store_.mutex);
  IoStatus RemoveUnusableFiles(EraseJob* job);
  IoStatus FinishForget();

  std::unique_ptr<Storage> owned_storage_;  // of Close; destroyed last
  const std::unique_ptr<Store> owned_store_;
  Store& store_;

  ProgressCall progress_;
  RecordReader reader_;

  std::condition_variable scan_done_, thread_ended_;
  // The namespaces of keys that open and that the store has no use for: with unread keys, records
  // of theirs are known to be nobody's.
  std::vector<OwnerTag> free_namespaces_ KV_GUARDED_BY(store_.mutex);
  uint64_t reserved_bytes_ KV_GUARDED_BY(store_.mutex) = 0;  // beyond kSessionBytes
  bool must_fit_ KV_GUARDED_BY(store_.mutex) = false;        // it has grown
  // Lists, so that a job moves without memory: none may be lost.
  std::list<FlushJob> flushes_ KV_GUARDED_BY(store_.mutex);
  std::list<EraseJob> erases_ KV_GUARDED_BY(store_.mutex);
  uint32_t threads_running_ KV_GUARDED_BY(store_.mutex) = 0;  // that use this object
  bool is_left_ KV_GUARDED_BY(store_.mutex) = false;  // by Close: the last thread destroys it
  uint32_t scan_next_ KV_GUARDED_BY(store_.mutex) = 0, scan_end_ KV_GUARDED_BY(store_.mutex) = 0;
  uint32_t scan_helpers_ KV_GUARDED_BY(store_.mutex) = 0;
  std::optional<int> scan_error_ KV_GUARDED_BY(store_.mutex);

  // The writer's alone.
  std::vector<uint32_t> group_, dropped_group_;
  struct Touched {
    uint32_t segment;
    OpenedFile file;
    bool has_failed;
  };
  std::vector<Touched> touched_;
  struct Unusable {
    std::string name;
    bool opens_elsewhere = false;  // a link, or of another version or shape
  };
  std::vector<Unusable> unusable_;  // files of segments that are not read
  uint32_t next_segment_ = 0;
  uint64_t retry_ns_ = 0, second_ns_ = 0, space_ns_ = 0, no_growth_until_ns_ = 0;
  uint64_t busy_since_ns_ = 0;  // 0: the last Grow had the folder's lock
  uint32_t maintained_hour_ = 0;
  StoreAbout about_written_;
  bool is_failure_logged_ = false;
  bool needs_key_room_ = false;  // the last group's key file did not fit under the cap
  bool has_told_unread_ = false;
  bool has_folder_ = false;  // it was there once, is ours alone, and may be used
  bool has_left_ = false;    // LeaveClosed was called

  std::thread writer_thread_, reader_thread_;
};

}  // namespace kvasir
