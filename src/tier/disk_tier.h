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

#include "base/arena.h"
#include "base/mutex.h"
#include "base/secret.h"
#include "tier/fixed_queue.h"
#include "tier/forget_intent.h"
#include "tier/owner_keys.h"
#include "tier/record_index.h"
#include "tier/segment_table.h"
#include "tier/storage.h"
#include "tier/store_files.h"
#include "tier/tier.h"

namespace kvasir {

struct DiskTierOptions {
  std::string folder;
  // Of everything in the folder. Absent: a tenth of what is free or ours, at most 20 GiB. The
  // tier's memory depends on this option, never on the free space.
  std::optional<uint64_t> cap_bytes = {};
  uint64_t ttl_hours = 168;                    // since last use; at least 1
  std::optional<uint64_t> reserve_bytes = {};  // DiskOptions::reserve_bytes
  Secret secret{};
  Digest identity{};
  RecordShape shape;
  std::string model = {}, kv_format = {};  // for about.json
  // 2: the tier's own threads. 0: nothing happens but in RunPending, on its caller's thread.
  uint32_t threads = 2;
  // Whether a file system that does not promise durability is refused (kUnsupported).
  bool needs_durable = false;
  // For tests, which need small ones: absent, by the cap and by the size of buffers.
  std::optional<uint64_t> segment_bytes = {};
  std::optional<uint32_t> num_buffers = {};
};

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
  static constexpr uint64_t kBesideBytes = uint64_t{2} << 20;  // of the cap, for all but segments
  static constexpr uint64_t kSessionBytes = uint64_t{512} << 10;  // of those, for sessions

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
  static uint64_t IndexBytes(const DiskTierOptions& options);
  static uint64_t BufferBytes(const DiskTierOptions& options);
  static uint32_t MaxRecords(const DiskTierOptions& options);
  // What of the cap MaxRecords can fill; the cap, unless kMaxDiskBlocks is the limit.
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
  // A record on its way out or in.
  struct Buffer {
    enum class Use : uint8_t { kFree, kSealing, kQueued, kWriting, kReading, kArrived, kFailed };
    Use use = Use::kFree;
    bool is_cancelled = false;  // erased, or the store is not open any more
    bool is_erased = false;
    bool is_bad = false;  // could not be sealed
    bool has_entry = false, has_owner = false;
    bool has_slot = false;
    uint8_t placings = 0;
    EntryId entry{};
    RecordName name;
    BlockKey parent{};
    bool has_after = false;
    RecordName after;
    OwnerId owner{};
    SlotRef slot;
    RecordPlace place;
    uint32_t refs = 0;      // of a read
    uint64_t number = 0;    // of a write handed over
    uint64_t since_ns = 0;  // when it was handed over
    uint64_t run_ns = 0;
    RecordSalt salt{};
    AesTag payload_tag{};

    // Of a record that the index has.
    bool is_read() const { return use != Use::kFree && has_entry && !has_owner; }
    bool is_write() const { return use != Use::kFree && has_entry && has_owner; }
    void Cancel() {
      is_cancelled = is_erased = true;
      has_entry = false;
    }
  };
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
  struct Memory {  // both arenas, and what lies in them
    Memory(Arena& index, Arena& buffers, const DiskTierOptions& options);
    RecordIndex records;
    SegmentTable segments;
    FixedQueue write_queue, read_queue;
    Buffer* buffers;
    std::byte *headers, *payloads, *scratch;
  };
  enum class EvictCause : uint8_t { kCap, kSpace, kTtl };

  DiskTier(const DiskTierOptions& options, Storage& storage, Arena index, Arena buffers,
           OwnerKeys keys);
  static uint32_t NumBuffers(const DiskTierOptions& options);

  // disk_tier.cc
  Buffer& buffer(uint32_t index) const { return buffers_[index]; }
  std::span<std::byte> HeaderOf(uint32_t buffer) const;
  std::span<std::byte> PayloadOf(uint32_t buffer) const;
  std::span<std::byte> ScratchOf(uint32_t thread) const;
  std::optional<uint32_t> FreeBuffer() const KV_REQUIRES(mutex_);
  void FreeBufferOf(uint32_t buffer) KV_REQUIRES(mutex_);
  bool IsErasing(const Digest& owner) const KV_REQUIRES(mutex_);
  bool IsForgetting(const Digest& owner) const KV_REQUIRES(mutex_);
  std::optional<OwnerId> OwnerOf(const Digest& owner) KV_REQUIRES(mutex_);
  uint64_t NewOrder() KV_REQUIRES(mutex_);
  uint32_t NowHour() KV_REQUIRES(mutex_);
  void DropRecord(EntryId entry) KV_REQUIRES(mutex_);  // its slot is free, its owner has one less
  void Wake();
  void CallProgress();

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
  void DropOrphans() KV_REQUIRES(mutex_);
  void RemoveUnusedKeys();
  Status FinishErases(FileId root);
  void LeaveStore(State state, std::string reason);
  void LeaveFailed(std::string reason);
  bool LeaveIfGone();
  std::string LastErrorText() const KV_REQUIRES(mutex_);
  void CountError(uint64_t TierStats::*counter, int error);
  StoreAbout AboutNow() KV_REQUIRES(mutex_);
  void WriteAbout();
  void WriteHours();

  // disk_tier_write.cc: the writer
  void WriterLoop();
  bool WriterStep();
  bool IsGroupDue() KV_REQUIRES(mutex_);
  bool WriteGroup();
  bool MakeSlotsFree(uint32_t slots);
  void GatherGroup() KV_REQUIRES(mutex_);
  bool WriteKeysOfGroup();
  void WriteRecords();
  IoStatus WriteRecord(uint32_t buffer, FileId file);
  void UnwriteHeader(uint32_t buffer, FileId file);
  void SyncSegments();
  void EndGroup();
  void EndFailedWrite(uint32_t buffer) KV_REQUIRES(mutex_);
  void FindAnswers();
  bool AnswerFlushes();
  static bool ReportFlush(FlushJob& job);

  // disk_tier_read.cc: the reader
  void ReaderLoop();
  bool ReaderStep();
  std::vector<uint32_t>& GatherRun() KV_REQUIRES(mutex_);
  IoStatus ReadRun(const StoreFiles& files, std::span<const uint32_t> run) noexcept;
  IoStatus ReadRecords(const StoreFiles& files, std::span<const uint32_t> run);
  void NoteStalls();

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
  bool Evict(EvictCause cause) KV_REQUIRES(mutex_);
  bool ReleaseSegment(EvictCause cause);
  IoStatus RemoveSegment(uint32_t segment, EvictCause cause);
  void RemoveAbandoned();
  void ForgetReadsOf(EntryId entry) KV_REQUIRES(mutex_);
  void FitCap();
  void ExpireOld();
  bool Maintain();

  // disk_tier_erase.cc
  bool RunErases();
  IoStatus TryErase(EraseJob& job) noexcept;
  IoStatus RunErase(EraseJob& job);
  static bool ReportErase(EraseJob& job);
  void CancelReadsOf(OwnerId owner) KV_REQUIRES(mutex_);
  void CancelWritesOf(OwnerId owner) KV_REQUIRES(mutex_);
  enum class AbandonedSegments : uint8_t { kRemoved, kLeft };
  IoStatus ZeroAllCondemned(AbandonedSegments abandoned);
  IoStatus NoteLinks(FileId root, EraseJob* job);
  bool HasUnreadKeys() const;
  IoStatus CondemnOrphans();
  IoStatus ZeroSlots(uint32_t segment, const std::vector<uint32_t>& slots);

  // disk_tier_forget.cc
  uint64_t TokenBytes() const { return uint64_t{4} * options_.shape.block_tokens; }
  IoStatus RunForget(EraseJob& job);
  std::vector<RecordName> FirstForgotten(const ForgetFacts& facts);
  bool Begins(const SlotRef& slot, const RecordName& name, const OwnerKey& key,
              const ForgetFacts& facts);
  void CondemnForgotten(const ForgetFacts& facts, std::span<const RecordName> firsts,
                        std::span<const BlockKey> kept, TierErased* erased) KV_REQUIRES(mutex_);
  void CondemnPath(const ForgetFacts& facts, std::span<const BlockKey> kept, TierErased* erased)
      KV_REQUIRES(mutex_);
  void Condemn(EntryId entry, TierErased* erased) KV_REQUIRES(mutex_);
  void CancelWrite(EntryId entry) KV_REQUIRES(mutex_);
  ForgetIntent CondemnedSlots() const KV_REQUIRES(mutex_);
  IoStatus RemoveUnusableFiles(EraseJob* job);
  IoStatus FinishForget();

  std::unique_ptr<Storage> owned_storage_;  // of Close; destroyed last
  const DiskTierOptions options_;
  Storage& storage_;
  const uint64_t index_cap_bytes_;
  const StoreId store_;
  const HmacKey head_key_;
  const uint32_t num_buffers_;

  mutable Mutex mutex_;
  std::condition_variable writer_wake_, reader_wake_, scan_done_, thread_ended_;
  Arena index_arena_, buffer_arena_;
  Memory memory_ KV_GUARDED_BY(mutex_);
  // Guarded by mutex_, except that the fields and bytes of a buffer that is being sealed, written
  // or read belong to who does that.
  Buffer* const buffers_;
  std::byte *const headers_, *const payloads_, *const scratch_;
  OwnerKeys keys_ KV_GUARDED_BY(mutex_);
  // Some key file does not open: a record without a key is not known to be nobody's, except those
  // of free_namespaces_.
  bool has_unread_keys_ KV_GUARDED_BY(mutex_) = false;
  std::vector<OwnerTag> free_namespaces_ KV_GUARDED_BY(mutex_);  // their keys open
  State state_ KV_GUARDED_BY(mutex_) = State::kBroken;
  std::string reason_ KV_GUARDED_BY(mutex_);
  std::string full_reason_ KV_GUARDED_BY(mutex_);  // "": something can be stored
  uint64_t missing_bytes_ KV_GUARDED_BY(mutex_) = 0;
  bool is_durable_ KV_GUARDED_BY(mutex_) = true;
  uint64_t epoch_ KV_GUARDED_BY(mutex_) = 0;  // of the open store
  uint64_t cap_bytes_ KV_GUARDED_BY(mutex_) = 0;
  uint64_t segment_bytes_ KV_GUARDED_BY(mutex_) = 0;
  uint64_t reserved_bytes_ KV_GUARDED_BY(mutex_) = 0;  // beyond kSessionBytes
  bool must_fit_ KV_GUARDED_BY(mutex_) = false;        // it has grown
  uint32_t write_buffers_ KV_GUARDED_BY(mutex_) = 0, read_buffers_ KV_GUARDED_BY(mutex_) = 0;
  uint32_t next_buffer_ KV_GUARDED_BY(mutex_) = 0;
  uint64_t queued_bytes_ KV_GUARDED_BY(mutex_) = 0;
  uint64_t last_write_ KV_GUARDED_BY(mutex_) = 0;
  uint64_t last_order_ KV_GUARDED_BY(mutex_) = 0;
  uint32_t latest_hour_ KV_GUARDED_BY(mutex_) = 0;
  uint64_t written_day_ KV_GUARDED_BY(mutex_) = 0;
  uint64_t hits_ KV_GUARDED_BY(mutex_) = 0;
  double read_bytes_per_s_ KV_GUARDED_BY(mutex_) = 0;
  mutable double open_bytes_per_s_ KV_GUARDED_BY(mutex_) = 0;
  double kept_bytes_per_s_ KV_GUARDED_BY(mutex_) = 0;  // of about.json
  TierStats stats_ KV_GUARDED_BY(mutex_);              // blocks: how many were ever stored
  // Lists, so that a job moves without memory: none may be lost.
  std::list<FlushJob> flushes_ KV_GUARDED_BY(mutex_);
  std::list<EraseJob> erases_ KV_GUARDED_BY(mutex_);
  // Of erases that have not succeeded yet. Nothing of them is stored meanwhile: the erase, when it
  // is tried again, would remove the new key too.
  std::vector<Digest> erasing_ KV_GUARDED_BY(mutex_);
  // Of forgets that have not succeeded yet. What is to stay of them is found again behind the last.
  std::vector<Digest> forgetting_ KV_GUARDED_BY(mutex_);
  std::function<void()> on_progress_ KV_GUARDED_BY(mutex_);
  uint32_t progress_calls_ KV_GUARDED_BY(mutex_) = 0;   // that have not returned
  uint32_t threads_running_ KV_GUARDED_BY(mutex_) = 0;  // that use this object
  bool is_left_ KV_GUARDED_BY(mutex_) = false;          // by Close: the last thread destroys it
  std::array<uint64_t, 8> error_ns_ KV_GUARDED_BY(mutex_) = {};
  std::array<uint64_t, 3> stall_ns_ KV_GUARDED_BY(mutex_) = {};
  uint64_t num_errors_ KV_GUARDED_BY(mutex_) = 0, num_stalls_ KV_GUARDED_BY(mutex_) = 0;
  int last_error_ KV_GUARDED_BY(mutex_) = 0;             // its errno; 0: there was none
  uint64_t reading_since_ns_ KV_GUARDED_BY(mutex_) = 0;  // 0: nothing is being read
  bool is_stall_counted_ KV_GUARDED_BY(mutex_) = false;
  bool writer_has_news_ KV_GUARDED_BY(mutex_) = false;
  bool is_stopping_ KV_GUARDED_BY(mutex_) = false;
  bool leaves_when_idle_ KV_GUARDED_BY(mutex_) = false;  // too many errors: broken
  uint32_t scan_next_ KV_GUARDED_BY(mutex_) = 0, scan_end_ KV_GUARDED_BY(mutex_) = 0;
  uint32_t scan_helpers_ KV_GUARDED_BY(mutex_) = 0;
  std::optional<int> scan_error_ KV_GUARDED_BY(mutex_);
  std::shared_ptr<const StoreFiles> files_ KV_GUARDED_BY(mutex_);  // null unless on

  // The writer's alone.
  std::shared_ptr<const StoreFiles> writing_files_;  // files_, also while the store is being opened
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
  // The reader's alone.
  std::vector<uint32_t> run_;

  std::thread writer_, reader_;
};

}  // namespace kvasir
