#include "tier/record_reader.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/fault.h"

namespace kvasir {
namespace {

constexpr uint64_t kRunBytes = uint64_t{4} << 20;
constexpr uint32_t kMaxRun = 256;
constexpr uint64_t kStallNs = 5'000'000'000, kHangNs = 3 * kStallNs;

void CountMoving(double* average, double value) {
  *average = *average == 0 ? value : *average * 0.9 + value * 0.1;
}

}  // namespace

RecordReader::RecordReader(Store& store) : store_(store) { run_.reserve(store.buffers.size()); }

std::optional<ReadId> RecordReader::Begin(const RecordName& name) {
  std::optional<uint32_t> index;
  {
    MutexLock lock(store_.mutex);
    const auto entry = store_.records.Find(name);
    if (store_.state.now != TierStats::State::kOn || !entry) return std::nullopt;
    const RecordIndex::Record& record = store_.records.at(*entry);
    if (store_.leaving.IsForgetting(store_.keys.owner_of(record.owner))) return std::nullopt;
    if (record.state != RecordIndex::State::kStored) return std::nullopt;
    for (uint32_t i = 0; record.readers > 0 && i < store_.buffers.size(); ++i) {
      RecordBuffer& shared = store_.buffers.at(i);
      const bool is_same = (shared.use == RecordBuffer::Use::kReading ||
                            shared.use == RecordBuffer::Use::kArrived) &&
                           shared.entry == entry;
      if (!is_same || shared.is_cancelled) continue;
      ++shared.refs;
      return ReadId{i};
    }
    index = store_.FreeBuffer();
    if (!index) return std::nullopt;
    const SegmentTable::Segment& segment = store_.segments.at(record.slot.segment);
    RecordBuffer& in = store_.buffers.at(*index);
    in.use = RecordBuffer::Use::kReading;
    in.entry = entry;
    in.name = name;
    in.owner = record.owner;
    in.slot = record.slot;
    in.place = {.store = store_.id,
                .segment = segment.number,
                .slot = record.slot.slot,
                .generation = segment.generation};
    in.refs = 1;
    ++store_.queues.num_reads;
    store_.queues.next = *index + 1;
    store_.records.AddReader(*entry);
    store_.segments.AddReader(record.slot);
    store_.queues.reads.PushBack(*index);
  }
  store_.reader_wake.notify_one();
  return ReadId{*index};
}

bool RecordReader::HasRoom() const {
  MutexLock lock(store_.mutex);
  return store_.queues.num_reads + store_.queues.num_writes < store_.buffers.size();
}

ReadState RecordReader::StateOf(ReadId read) const {
  MutexLock lock(store_.mutex);
  const RecordBuffer& in = store_.buffers.at(static_cast<uint32_t>(read));
  if (in.is_erased) return ReadState::kErased;
  if (in.is_cancelled || in.use == RecordBuffer::Use::kFailed) return ReadState::kFailed;
  return in.use == RecordBuffer::Use::kArrived ? ReadState::kArrived : ReadState::kReading;
}

bool RecordReader::Unseal(ReadId read, const RecordFacts& facts,
                          std::span<std::byte> payload) const {
  const auto index = static_cast<uint32_t>(read);
  OwnerKey key;
  RecordPlace place;
  {
    MutexLock lock(store_.mutex);
    const RecordBuffer& in = store_.buffers.at(index);
    if (in.use != RecordBuffer::Use::kArrived || in.is_cancelled) return false;
    const std::optional<OwnerId> owner = store_.keys.Find(facts.owner);
    if (owner != in.owner || in.name != facts.name) return false;
    key = store_.keys.KeyOf(*owner);
    place = in.place;
  }
  const uint64_t start_ns = store_.storage.MonotonicNs();
  const std::span<const std::byte> header = store_.buffers.HeaderOf(index);
  const auto record = DecodePublic(header.first<kPublicBytes>());
  const auto is_place_right = [&](const RecordPlace& found) {
    RecordPlace compared = found;
    if (FaultActive(Fault::kUncheckedGeneration)) compared.generation = place.generation;
    if (FaultActive(Fault::kStaleSlot)) compared.slot = place.slot;
    return compared == place;
  };
  bool is_right = record && is_place_right(record->place) && record->name == facts.name &&
                  record->parent == facts.parent && record->namespace_id == key.namespace_id &&
                  record->identity == store_.options.identity &&
                  record->payload_bytes == payload.size() &&
                  payload.size() == store_.options.shape.payload_bytes &&
                  facts.tokens.size() == store_.options.shape.block_tokens;
  if (is_right) {
    AesKey record_key = RecordKeyOf(key.key, record->salt);
    // The tokens are unsealed where the payload will be, or in place where they need more room: no
    // other thread uses the header.
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
    is_right = UnsealHeader(record_key, record->placings, store_.options.shape.block_tokens, header,
                            tokens) &&
               std::memcmp(tokens.data(), facts.tokens.data(), token_bytes) == 0 &&
               UnsealPayload(record_key, store_.buffers.PayloadOf(index).first(payload.size()),
                             record->payload_tag, payload);
    OPENSSL_cleanse(record_key.data(), record_key.size());
    OPENSSL_cleanse(on_stack, sizeof(on_stack));
    OPENSSL_cleanse(elsewhere.data(), elsewhere.size());
  }
  OPENSSL_cleanse(static_cast<void*>(&key), sizeof(key));
  const uint64_t took_ns = store_.storage.MonotonicNs() - start_ns;
  MutexLock lock(store_.mutex);
  if (took_ns > 0) {
    CountMoving(&store_.figures.open_bytes_per_s,
                static_cast<double>(payload.size()) * 1e9 / static_cast<double>(took_ns));
  }
  return is_right && !store_.buffers.at(index).is_cancelled;
}

void RecordReader::End(ReadId read, ReadEnd end) {
  const auto index = static_cast<uint32_t>(read);
  MutexLock lock(store_.mutex);
  RecordBuffer& in = store_.buffers.at(index);
  KV_CHECK(in.refs > 0);
  --in.refs;
  if (end == ReadEnd::kUsed) ++store_.figures.hits;
  if (end == ReadEnd::kDamaged && in.entry && !in.is_cancelled) {
    ++store_.figures.stats.fault_damaged;
    store_.EndReader(in);
    store_.DropRecord(*in.entry);
    in.entry.reset();
    in.is_cancelled = true;
  }
  // One that is being read is freed by the reader.
  if (in.refs > 0 || in.use == RecordBuffer::Use::kReading) return;
  if (in.entry) store_.EndReader(in);
  store_.FreeBufferOf(index);
}

bool RecordReader::Step() {
  std::shared_ptr<const StoreFiles> files;
  {
    MutexLock lock(store_.mutex);
    files = store_.state.files;
    if (store_.is_stopping || files == nullptr || GatherRun().empty()) return false;
    since_ns_ = store_.storage.MonotonicNs();
    is_stall_counted_ = false;
  }
  const IoStatus read = ReadRun(*files, run_);
  std::array<bool, kMaxRun> is_bad;
  is_bad.fill(!read);
  if (!read && read.error() != ECANCELED) {
    store_.CountError(&TierStats::fault_read, read.error());
    // A bad sector costs its own record only: each is read alone.
    for (size_t i = 0; run_.size() > 1 && i < run_.size(); ++i) {
      is_bad[i] = !ReadRun(*files, std::span(run_).subspan(i, 1));
    }
  }
  NoteStalls();
  {
    MutexLock lock(store_.mutex);
    const uint64_t took_ns = store_.storage.MonotonicNs() - since_ns_;
    const auto num_read = std::ranges::count(std::span(is_bad).first(run_.size()), false);
    const uint64_t bytes = static_cast<uint64_t>(num_read) * store_.options.shape.slot_bytes();
    since_ns_ = 0;
    store_.figures.stats.read_bytes += bytes;
    if (read) store_.figures.stats.read_seconds.Observe(static_cast<double>(took_ns) * 1e-9);
    if (read && took_ns > 0) {
      const double speed = static_cast<double>(bytes) * 1e9 / static_cast<double>(took_ns);
      CountMoving(&store_.figures.read_bytes_per_s, speed);
    }
    EndRun(is_bad);
  }
  return true;
}

// Ends the run: its reads have arrived or failed.
void RecordReader::EndRun(std::span<const bool> is_bad) {
  for (size_t i = 0; i < run_.size(); ++i) {
    const uint32_t index = run_[i];
    RecordBuffer& in = store_.buffers.at(index);
    in.use =
        is_bad[i] || in.is_cancelled ? RecordBuffer::Use::kFailed : RecordBuffer::Use::kArrived;
    if (is_bad[i] && in.entry) {
      // What does not read leaves at once; it is computed, and may be written again.
      store_.EndReader(in);
      store_.DropRecord(*in.entry);
      in.entry.reset();
    }
    if (in.refs > 0) continue;
    if (in.entry) store_.EndReader(in);
    store_.FreeBufferOf(index);
  }
  run_.clear();
}

// Takes the next records that are wanted and lie side by side.
std::vector<uint32_t>& RecordReader::GatherRun() {
  run_.clear();
  while (!store_.queues.reads.empty()) {
    const uint32_t index = store_.queues.reads.at(0);
    RecordBuffer& in = store_.buffers.at(index);
    if (in.refs == 0 || in.is_cancelled) {
      (void)store_.queues.reads.PopFront();
      in.use = RecordBuffer::Use::kFailed;
      if (in.refs > 0) continue;  // EndRead frees it
      if (in.entry) store_.EndReader(in);
      store_.FreeBufferOf(index);
      continue;
    }
    if (!run_.empty()) {
      const SlotRef& last = store_.buffers.at(run_.back()).slot;
      const bool is_next = in.slot.segment == last.segment && in.slot.slot == last.slot + 1;
      const bool fits = (run_.size() + 1) * store_.options.shape.slot_bytes() <= kRunBytes;
      if (!is_next || !fits || run_.size() == kMaxRun) break;
    }
    (void)store_.queues.reads.PopFront();
    in.run_ns = 1;  // the reader has it
    run_.push_back(index);
  }
  return run_;
}

// Reads records that lie side by side. ECANCELED: none of them is wanted any more.
IoStatus RecordReader::ReadRun(const StoreFiles& files, std::span<const uint32_t> run) noexcept {
  try {
    return ReadRecords(files, run);
  } catch (...) {
    return IoFailed(ENOMEM);
  }
}

IoStatus RecordReader::ReadRecords(const StoreFiles& files, std::span<const uint32_t> run) {
  SegmentShape shape;
  uint32_t number, first;
  {
    MutexLock lock(store_.mutex);
    const RecordBuffer& in = store_.buffers.at(run.front());
    const auto is_cancelled = [&](uint32_t index) { return store_.buffers.at(index).is_cancelled; };
    if (std::ranges::all_of(run, is_cancelled)) return IoFailed(ECANCELED);
    shape = store_.segments.at(in.slot.segment).shape;
    number = in.place.segment;
    first = in.slot.slot;
  }
  const IoResult<OpenedFile> file =
      Own(store_.storage,
          store_.storage.OpenFile(files.folder.id(), SegmentFileName(number), OpenMode::kRead));
  if (!file) return IoFailed(file.error());
  std::array<std::span<std::byte>, kMaxRun> pieces;
  const auto used = std::span(pieces).first(run.size());
  for (size_t i = 0; i < run.size(); ++i) pieces[i] = store_.buffers.HeaderOf(run[i]);
  if (const IoStatus read = ReadAll(store_.storage, file->id(), used, shape.header_at(first));
      !read) {
    return read;
  }
  for (size_t i = 0; i < run.size(); ++i) pieces[i] = store_.buffers.PayloadOf(run[i]);
  return ReadAll(store_.storage, file->id(), used, shape.payload_at(first));
}

void RecordReader::NoteStalls() {
  {
    MutexLock lock(store_.mutex);
    if (since_ns_ == 0) return;
    const uint64_t passed_ns = store_.storage.MonotonicNs() - since_ns_;
    const bool is_on = store_.state.now == TierStats::State::kOn;
    if (passed_ns > kHangNs && is_on) store_.state.must_leave = true;
    if (passed_ns <= kStallNs || is_stall_counted_) return;
    is_stall_counted_ = true;
  }
  store_.CountError(&TierStats::fault_stalled, ETIMEDOUT);
}

bool RecordReader::is_reading() const {
  MutexLock lock(store_.mutex);
  return since_ns_ > 0;
}

}  // namespace kvasir
