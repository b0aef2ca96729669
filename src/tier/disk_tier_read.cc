// DiskTier: reading. The reader takes records that lie side by side by one call.
#include <openssl/crypto.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/fault.h"
#include "tier/disk_tier.h"

namespace kvasir {
namespace {

constexpr uint64_t kRunBytes = uint64_t{4} << 20;
constexpr uint32_t kMaxRun = 256;
constexpr uint64_t kStallNs = 5'000'000'000, kHangNs = 3 * kStallNs;

void CountMoving(double* average, double value) {
  *average = *average == 0 ? value : *average * 0.9 + value * 0.1;
}

}  // namespace

std::optional<ReadId> DiskTier::BeginRead(const RecordName& name) {
  std::optional<uint32_t> index;
  {
    MutexLock lock(mutex_);
    const auto entry = memory_.records.Find(name);
    if (state_ != State::kOn || !entry) return std::nullopt;
    const RecordIndex::Record& record = memory_.records.at(*entry);
    if (IsForgetting(keys_.owner_of(record.owner))) return std::nullopt;
    if (record.state != RecordIndex::State::kStored) return std::nullopt;
    for (uint32_t i = 0; record.readers > 0 && i < num_buffers_; ++i) {
      Buffer& shared = buffer(i);
      const bool is_same =
          (shared.use == Buffer::Use::kReading || shared.use == Buffer::Use::kArrived) &&
          shared.has_entry && shared.entry == *entry;
      if (!is_same || shared.is_cancelled) continue;
      ++shared.refs;
      return ReadId{i};
    }
    index = FreeBuffer();
    if (!index) return std::nullopt;
    const SegmentTable::Segment& segment = memory_.segments.at(record.slot.segment);
    Buffer& in = buffer(*index);
    in.use = Buffer::Use::kReading;
    in.has_entry = true;
    in.entry = *entry;
    in.name = name;
    in.owner = record.owner;
    in.slot = record.slot;
    in.place = {.store = store_,
                .segment = segment.number,
                .slot = record.slot.slot,
                .generation = segment.generation};
    in.refs = 1;
    in.number = epoch_;
    ++read_buffers_;
    next_buffer_ = *index + 1;
    memory_.records.AddReader(*entry);
    memory_.segments.AddReader(record.slot);
    memory_.read_queue.PushBack(*index);
  }
  reader_wake_.notify_one();
  return ReadId{*index};
}

bool DiskTier::HasReadRoom() const {
  MutexLock lock(mutex_);
  return read_buffers_ + write_buffers_ < num_buffers_;
}

ReadState DiskTier::StateOf(ReadId read) const {
  MutexLock lock(mutex_);
  const Buffer& in = buffer(static_cast<uint32_t>(read));
  if (in.is_erased) return ReadState::kErased;
  if (in.is_cancelled || in.use == Buffer::Use::kFailed) return ReadState::kFailed;
  return in.use == Buffer::Use::kArrived ? ReadState::kArrived : ReadState::kReading;
}

bool DiskTier::Open(ReadId read, const RecordFacts& facts, std::span<std::byte> payload) const {
  const auto index = static_cast<uint32_t>(read);
  OwnerKey key;
  RecordPlace place;
  {
    MutexLock lock(mutex_);
    const Buffer& in = buffer(index);
    if (in.use != Buffer::Use::kArrived || in.is_cancelled) return false;
    const std::optional<OwnerId> owner = keys_.Find(facts.owner);
    if (owner != in.owner || in.name != facts.name) return false;
    key = keys_.KeyOf(*owner);
    place = in.place;
  }
  const uint64_t start_ns = storage_.MonotonicNs();
  const std::span<const std::byte> header = HeaderOf(index);
  const auto record = DecodePublic(header.first<kPublicBytes>());
  const auto is_place_right = [&](const RecordPlace& found) {
    RecordPlace compared = found;
    if (FaultActive(Fault::kUncheckedGeneration)) compared.generation = place.generation;
    if (FaultActive(Fault::kUncheckedSlot)) compared.slot = place.slot;
    return compared == place;
  };
  bool is_right = record && is_place_right(record->place) && record->name == facts.name &&
                  record->parent == facts.parent && record->namespace_id == key.namespace_id &&
                  record->identity == options_.identity &&
                  record->payload_bytes == payload.size() &&
                  payload.size() == options_.shape.payload_bytes &&
                  facts.tokens.size() == options_.shape.block_tokens;
  if (is_right) {
    AesKey record_key = RecordKeyOf(key.key, record->salt);
    // The tokens are opened where the payload will be, or in place where they need more room: a
    // header is in nobody else's use.
    const uint64_t token_bytes = facts.tokens.size_bytes();
    alignas(8) std::byte on_stack[1024];
    std::vector<std::byte> elsewhere;
    std::span<std::byte> tokens =
        std::span(on_stack).first(std::min(token_bytes, sizeof(on_stack)));
    if (payload.size() >= token_bytes) {
      tokens = payload.first(token_bytes);
    } else if (token_bytes > sizeof(on_stack)) {
      elsewhere.resize(token_bytes);  // blocks of over 256 tokens and fewer bytes than their ids
      tokens = elsewhere;
    }
    is_right =
        OpenHeader(record_key, record->placings, options_.shape.block_tokens, header, tokens) &&
        std::memcmp(tokens.data(), facts.tokens.data(), token_bytes) == 0 &&
        OpenPayload(record_key, PayloadOf(index).first(payload.size()), record->payload_tag,
                    payload);
    OPENSSL_cleanse(record_key.data(), record_key.size());
    OPENSSL_cleanse(on_stack, sizeof(on_stack));
    OPENSSL_cleanse(elsewhere.data(), elsewhere.size());
  }
  OPENSSL_cleanse(static_cast<void*>(&key), sizeof(key));
  const uint64_t took_ns = storage_.MonotonicNs() - start_ns;
  MutexLock lock(mutex_);
  if (took_ns > 0) {
    CountMoving(&open_bytes_per_s_,
                static_cast<double>(payload.size()) * 1e9 / static_cast<double>(took_ns));
  }
  return is_right && !buffer(index).is_cancelled;
}

void DiskTier::EndRead(ReadId read, ReadEnd end) {
  const auto index = static_cast<uint32_t>(read);
  MutexLock lock(mutex_);
  Buffer& in = buffer(index);
  KV_CHECK(in.refs > 0);
  --in.refs;
  if (end == ReadEnd::kOpened) ++hits_;
  if (end == ReadEnd::kDamaged && in.has_entry && !in.is_cancelled) {
    ++stats_.fault_damaged;
    memory_.records.EndReader(in.entry);
    memory_.segments.EndReader(in.slot);
    DropRecord(in.entry);
    in.has_entry = false;
    in.is_cancelled = true;
  }
  // One that is being read is freed by the reader.
  if (in.refs > 0 || in.use == Buffer::Use::kReading) return;
  if (in.has_entry) {
    memory_.records.EndReader(in.entry);
    memory_.segments.EndReader(in.slot);
  }
  FreeBufferOf(index);
}

void DiskTier::ReaderLoop() {
  for (;;) {
    while (ReaderStep()) {
    }
    MutexLock lock(mutex_);
    if (is_stopping_) return;
    if (!memory_.read_queue.empty() || scan_next_ < scan_end_) continue;
    lock.WaitFor(reader_wake_, std::chrono::milliseconds(1000));
  }
}

bool DiskTier::ReaderStep() {
  bool helps = false;
  std::shared_ptr<const StoreFiles> files;
  {
    MutexLock lock(mutex_);
    if (is_stopping_) return false;
    helps = options_.threads > 0 && scan_next_ < scan_end_;
    if (helps) ++scan_helpers_;
    if (!helps) {
      files = files_;
      if (files == nullptr || GatherRun().empty()) return false;
      reading_since_ns_ = storage_.MonotonicNs();
      is_stall_counted_ = false;
    }
  }
  if (helps) {
    ScanSegments(1);
    MutexLock lock(mutex_);
    --scan_helpers_;
    scan_done_.notify_all();
    return true;
  }
  const IoStatus read = ReadRun(*files, run_);
  std::array<bool, kMaxRun> is_bad;
  is_bad.fill(!read);
  if (!read && read.error() != ECANCELED) {
    CountError(&TierStats::fault_read, read.error());
    // A bad sector costs its own record only: each is read alone.
    for (size_t i = 0; run_.size() > 1 && i < run_.size(); ++i) {
      is_bad[i] = !ReadRun(*files, std::span(run_).subspan(i, 1));
    }
  }
  NoteStalls();
  {
    MutexLock lock(mutex_);
    const uint64_t took_ns = storage_.MonotonicNs() - reading_since_ns_;
    const auto num_read = std::ranges::count(std::span(is_bad).first(run_.size()), false);
    const uint64_t bytes = static_cast<uint64_t>(num_read) * options_.shape.slot_bytes();
    reading_since_ns_ = 0;
    stats_.read_bytes += bytes;
    if (read) stats_.read_seconds.Observe(static_cast<double>(took_ns) * 1e-9);
    if (read && took_ns > 0) {
      const double speed = static_cast<double>(bytes) * 1e9 / static_cast<double>(took_ns);
      read_bytes_per_s_ = read_bytes_per_s_ == 0 ? speed : read_bytes_per_s_ * 0.9 + speed * 0.1;
    }
    for (size_t i = 0; i < run_.size(); ++i) {
      const uint32_t index = run_[i];
      Buffer& in = buffer(index);
      in.use = is_bad[i] || in.is_cancelled ? Buffer::Use::kFailed : Buffer::Use::kArrived;
      if (is_bad[i] && in.has_entry) {
        // What does not read leaves at once; it is computed, and may be written again.
        memory_.records.EndReader(in.entry);
        memory_.segments.EndReader(in.slot);
        DropRecord(in.entry);
        in.has_entry = false;
      }
      if (in.refs > 0) continue;
      if (in.has_entry) {
        memory_.records.EndReader(in.entry);
        memory_.segments.EndReader(in.slot);
      }
      FreeBufferOf(index);
    }
    run_.clear();
  }
  files.reset();
  CallProgress();
  return true;
}

// The next records that are wanted and lie side by side.
std::vector<uint32_t>& DiskTier::GatherRun() {
  run_.clear();
  while (!memory_.read_queue.empty()) {
    const uint32_t index = memory_.read_queue.at(0);
    Buffer& in = buffer(index);
    if (in.refs == 0 || in.is_cancelled) {
      (void)memory_.read_queue.PopFront();
      in.use = Buffer::Use::kFailed;
      if (in.refs > 0) continue;  // EndRead frees it
      if (in.has_entry) {
        memory_.records.EndReader(in.entry);
        memory_.segments.EndReader(in.slot);
      }
      FreeBufferOf(index);
      continue;
    }
    if (!run_.empty()) {
      const SlotRef& last = buffer(run_.back()).slot;
      const bool is_next = in.slot.segment == last.segment && in.slot.slot == last.slot + 1;
      const bool fits = (run_.size() + 1) * options_.shape.slot_bytes() <= kRunBytes;
      if (!is_next || !fits || run_.size() == kMaxRun) break;
    }
    (void)memory_.read_queue.PopFront();
    in.run_ns = 1;  // the reader has it
    run_.push_back(index);
  }
  return run_;
}

// Records side by side. ECANCELED: nobody wants any of them.
IoStatus DiskTier::ReadRun(const StoreFiles& files, std::span<const uint32_t> run) noexcept {
  try {
    return ReadRecords(files, run);
  } catch (...) {
    return IoFailed(ENOMEM);
  }
}

IoStatus DiskTier::ReadRecords(const StoreFiles& files, std::span<const uint32_t> run) {
  SegmentShape shape;
  uint32_t number, first;
  {
    MutexLock lock(mutex_);
    const Buffer& in = buffer(run.front());
    const auto is_cancelled = [&](uint32_t index) { return buffer(index).is_cancelled; };
    if (std::ranges::all_of(run, is_cancelled)) return IoFailed(ECANCELED);
    shape = memory_.segments.at(in.slot.segment).shape;
    number = in.place.segment;
    first = in.slot.slot;
  }
  const IoResult<OpenedFile> file =
      Own(storage_, storage_.OpenFile(files.folder.id(), SegmentFileName(number), OpenMode::kRead));
  if (!file) return IoFailed(file.error());
  std::array<std::span<std::byte>, kMaxRun> pieces;
  const auto used = std::span(pieces).first(run.size());
  for (size_t i = 0; i < run.size(); ++i) pieces[i] = HeaderOf(run[i]);
  if (const IoStatus read = ReadAll(storage_, file->id(), used, shape.header_at(first)); !read) {
    return read;
  }
  for (size_t i = 0; i < run.size(); ++i) pieces[i] = PayloadOf(run[i]);
  return ReadAll(storage_, file->id(), used, shape.payload_at(first));
}

// Counts the read under way once, when it takes over 5 s. The writer asks too, since a read may
// never return: then no other one is served, and it alone makes the tier broken.
void DiskTier::NoteStalls() {
  {
    MutexLock lock(mutex_);
    if (reading_since_ns_ == 0) return;
    const uint64_t passed_ns = storage_.MonotonicNs() - reading_since_ns_;
    if (passed_ns > kHangNs && state_ == State::kOn) leaves_when_idle_ = true;
    if (passed_ns <= kStallNs || is_stall_counted_) return;
    is_stall_counted_ = true;
  }
  CountError(&TierStats::fault_stalled, ETIMEDOUT);
}

}  // namespace kvasir
