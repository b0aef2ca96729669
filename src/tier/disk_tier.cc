#include "tier/disk_tier.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/hex.h"
#include "base/log.h"
#include "base/result.h"
#include "base/sizes.h"
#include "base/start_thread.h"
#include "base/until_done.h"

namespace kvasir {

uint64_t DiskTier::UsableBytes(const DiskTierOptions& options) {
  return std::min(options.planned_cap_bytes(), kMaxDiskBlocks * options.shape.slot_bytes());
}

uint64_t DiskTier::MinCapBytes(const RecordShape& shape) {
  return 2 * SegmentBytesFor(shape, 0) + Store::kBesideBytes;
}

void DiskTier::FitMemory(uint64_t bytes, DiskTierOptions* options) {
  const auto takes = [&] { return IndexBytes(*options) + BufferBytes(*options); };
  const uint32_t most = Store::NumBuffers(*options);
  if (takes() <= bytes) return;
  const uint64_t wanted = bytes / 2 / options->shape.slot_bytes();
  options->num_buffers =
      static_cast<uint32_t>(std::clamp<uint64_t>(wanted, Store::kMinBuffers, most));
  if (options->cap_bytes) return;
  const uint64_t least = MinCapBytes(options->shape);
  uint64_t& cap = options->default_cap_bytes;
  cap = std::max(least, std::min(cap, UsableBytes(*options)));  // more has no index
  while (takes() > bytes && cap > least) cap = std::max(least, cap / 8 * 7);
}

Result<std::unique_ptr<DiskTier>> DiskTier::Open(const DiskTierOptions& options, Storage& storage) {
  if (options.cap_bytes && !options.segment_bytes &&
      *options.cap_bytes < MinCapBytes(options.shape)) {
    return FailField(Code::kInvalidArgument, "disk_cap",
                     "{} bytes hold less than two segments; give at least {}, or 0 for no disk",
                     *options.cap_bytes, RoundedUpMib(MinCapBytes(options.shape)));
  }
  if (options.ttl_hours == 0) {
    return FailField(Code::kInvalidArgument, "disk_ttl", "0 hours keep nothing; give at least 1");
  }
  KV_ASSIGN(std::unique_ptr<Store> store, Store::Create(options, storage));
  std::unique_ptr<DiskTier> tier(new DiskTier(std::move(store)));
  const bool has_threads = options.threads > 0;
  if (has_threads) {
    KV_ASSIGN(tier->reader_thread_, tier->StartThreadOf(&DiskTier::ReaderLoop));
  }
  KV_TRY(tier->keeper_.OpenFirst());
  if (has_threads) {
    KV_ASSIGN(tier->writer_thread_, tier->StartThreadOf(&DiskTier::WriterLoop));
  }
  return tier;
}

DiskTier::DiskTier(std::unique_ptr<Store> store)
    : owned_store_(std::move(store)),
      store_(*owned_store_),
      reader_(store_),
      sealer_(store_),
      keeper_(store_, reader_, progress_) {}

bool DiskTier::Has(const RecordName& name) const {
  MutexLock lock(store_.mutex);
  const auto entry = store_.records.Find(name);
  if (!entry) return false;
  const RecordIndex::Record& record = store_.records.at(*entry);
  return record.state == RecordIndex::State::kStored &&
         !store_.leaving.IsForgetting(store_.keys.owner_of(record.owner));
}

void DiskTier::Touch(const RecordName& name) {
  MutexLock lock(store_.mutex);
  const auto entry = store_.records.Find(name);
  if (!entry) return;
  store_.records.Touch(*entry, store_.clock.NewOrder());
  const RecordIndex::Record& record = store_.records.at(*entry);
  if (record.state == RecordIndex::State::kStored) {
    store_.segments.at(record.slot.segment).has_new_hours = true;
  }
}

bool DiskTier::ReadyOwner(const Digest& owner) {
  MutexLock lock(store_.mutex);
  // Where the store is not open, BeginWrite makes the key when it is.
  return store_.state.now != TierStats::State::kOn || store_.leaving.IsErasing(owner) ||
         store_.OwnerOf(owner).has_value();
}

tl::expected<WriteId, WriteRefusal> DiskTier::BeginWrite(const RecordFacts& facts) {
  return sealer_.Begin(facts);
}
void DiskTier::Seal(WriteId write, std::span<const std::byte> payload) {
  sealer_.Seal(write, payload);
}
void DiskTier::EndWrite(WriteId write) { sealer_.End(write); }

void DiskTier::CountDropped(WriteRefusal why, uint32_t) {
  MutexLock lock(store_.mutex);
  if (why == WriteRefusal::kNoBuffer) ++store_.figures.stats.dropped_buffer;
  if (why == WriteRefusal::kBudget) ++store_.figures.stats.dropped_budget;
  if (why == WriteRefusal::kOff) ++store_.figures.stats.dropped_failed;
}

std::optional<ReadId> DiskTier::BeginRead(const RecordName& name) { return reader_.Begin(name); }
bool DiskTier::HasReadRoom() const { return reader_.HasRoom(); }
ReadState DiskTier::StateOf(ReadId read) const { return reader_.StateOf(read); }
bool DiskTier::Unseal(ReadId read, const RecordFacts& facts, std::span<std::byte> payload) const {
  return reader_.Unseal(read, facts, payload);
}
void DiskTier::EndRead(ReadId read, ReadEnd end) { reader_.End(read, end); }

void DiskTier::set_on_progress(std::function<void()> on_progress) {
  progress_.Set(std::move(on_progress));
}
void DiskTier::Flush(std::function<void(Result<TierFlushed>)> done) {
  keeper_.flushes().Add(std::move(done));
}
std::vector<Digest> DiskTier::Owners() const {
  MutexLock lock(store_.mutex);
  return store_.keys.Owners();
}

std::string DiskTier::store_folder() const {
  return store_.options.folder + "/" + ToHex(store_.id);
}

void DiskTier::Erase(const Digest& owner, std::function<void(Result<TierErased>)> done) {
  keeper_.erases().Erase(owner, std::move(done));
}
void DiskTier::Forget(ForgetFacts facts, std::function<void(Result<TierErased>)> done) {
  keeper_.erases().Forget(std::move(facts), std::move(done));
}
void DiskTier::Reserve(uint64_t bytes) { keeper_.room().Reserve(bytes); }

TierStats DiskTier::Stats() const {
  MutexLock lock(store_.mutex);
  TierStats stats = store_.figures.stats;
  stats.state = store_.state.now;
  stats.reason = store_.state.reason;
  if (store_.state.now == TierStats::State::kOn && !store_.state.full_reason.empty()) {
    stats.state = TierStats::State::kFull;
    stats.reason = store_.state.full_reason;
    stats.missing_bytes = store_.state.missing_bytes;
  }
  stats.folder = store_.options.folder;
  stats.durable = store_.state.is_durable;
  stats.cap_bytes = store_.state.cap_bytes;
  stats.budget_bytes = 2 * store_.state.cap_bytes;
  stats.blocks = store_.records.num_stored();
  stats.pending_blocks = store_.records.num_writing();
  stats.used_bytes = stats.blocks * store_.options.shape.slot_bytes();
  stats.load_bytes_per_s = store_.figures.load_bytes_per_s();
  return stats;
}

void DiskTier::RunPending() {
  KV_CHECK(store_.options.threads == 0);
  for (bool has_worked = true; has_worked;) {
    has_worked = keeper_.Step();
    has_worked |= ReaderStep();
  }
}

bool DiskTier::CheckInvariants() const {
  MutexLock lock(store_.mutex);
  return store_.CheckInvariants();
}

Result<std::thread> DiskTier::StartThreadOf(void (DiskTier::*loop)()) {
  {
    MutexLock lock(store_.mutex);
    ++threads_running_;
  }
  Result<std::thread> thread = StartThread("disk tier", [this, loop] {
    (this->*loop)();
    EndThread();
  });
  if (thread) return thread;
  MutexLock lock(store_.mutex);
  --threads_running_;
  return thread;
}

void DiskTier::WriterLoop() {
  for (;;) {
    try {
      while (keeper_.Step()) {
      }
    } catch (...) {
      // What was under way may be half done: it is dropped, and the store is read again later.
      UntilDone([&] { keeper_.Leave("the system is out of memory"); });
    }
    MutexLock lock(store_.mutex);
    if (store_.is_stopping) break;
    if (!std::exchange(store_.writer_has_news, false)) {
      lock.WaitFor(store_.writer_wake,
                   std::chrono::milliseconds(store_.queues.writes.empty() ? 250 : 20));
    }
  }
  UntilDone([&] { LeaveClosed(); });
}

void DiskTier::ReaderLoop() {
  for (;;) {
    while (ReaderStep()) {
    }
    MutexLock lock(store_.mutex);
    if (store_.is_stopping) return;
    if (!store_.queues.reads.empty() || store_.state.wants_help) continue;
    lock.WaitFor(store_.reader_wake, std::chrono::milliseconds(1000));
  }
}

bool DiskTier::ReaderStep() {
  if (keeper_.scan().Help()) return true;
  if (!reader_.Step()) return false;
  progress_.Call();
  return true;
}

// Ends a thread: the last thing that it does.
void DiskTier::EndThread() {
  bool destroys;
  {
    MutexLock lock(store_.mutex);
    --threads_running_;
    destroys = is_left_ && threads_running_ == 0;
    thread_ended_.notify_all();
  }
  if (destroys) delete this;
}

void DiskTier::Stop() {
  {
    MutexLock lock(store_.mutex);
    store_.is_stopping = true;
  }
  store_.writer_wake.notify_all();
  store_.reader_wake.notify_all();
}

// Leaves the store, as the last thing that the writer does. A tier that was left writes nothing any
// more.
void DiskTier::LeaveClosed() {
  has_left_ = true;
  bool is_left;
  {
    MutexLock lock(store_.mutex);
    is_left = is_left_;
  }
  keeper_.Close(is_left ? StoreKeeper::LastNotes::kSkipped : StoreKeeper::LastNotes::kWritten);
}

DiskTier::~DiskTier() {
  Stop();
  if (writer_thread_.joinable()) writer_thread_.join();
  if (reader_thread_.joinable()) reader_thread_.join();
  if (!has_left_) UntilDone([&] { LeaveClosed(); });
  keeper_.erases().Refuse();
}

// Returns whether they ended within `patience`.
bool DiskTier::WaitForThreads(std::chrono::milliseconds patience) {
  // Real time, whatever the storage's is.
  const uint64_t end_ns = MonotonicNs() + static_cast<uint64_t>(patience.count()) * 1'000'000;
  MutexLock lock(store_.mutex);
  while (threads_running_ > 0) {
    const uint64_t now_ns = MonotonicNs();
    if (now_ns >= end_ns) return false;
    lock.WaitFor(thread_ended_, std::chrono::milliseconds((end_ns - now_ns) / 1'000'000 + 1));
  }
  return true;
}

bool DiskTier::Close(std::unique_ptr<DiskTier> tier, std::unique_ptr<Storage> storage,
                     std::chrono::milliseconds patience) {
  KV_CHECK(&tier->store_.storage == storage.get());
  tier->Stop();
  if (tier->WaitForThreads(patience)) {
    tier.reset();
    return true;
  }
  Log(LogLevel::kWarning, "disk tier: its folder does not answer and is left as it is",
      LogField("folder", tier->store_.options.folder));
  tier->owned_storage_ = std::move(storage);
  tier->progress_.Stop();
  tier->keeper_.flushes().Refuse();
  tier->keeper_.erases().Refuse();
  bool is_left;
  {
    MutexLock lock(tier->store_.mutex);
    if (tier->threads_running_ > 0) {
      tier->is_left_ = true;
      if (tier->writer_thread_.joinable()) tier->writer_thread_.detach();
      if (tier->reader_thread_.joinable()) tier->reader_thread_.detach();
    }
    is_left = tier->is_left_;
    if (is_left) (void)tier.release();  // to the threads
  }
  return !is_left;
}

}  // namespace kvasir
