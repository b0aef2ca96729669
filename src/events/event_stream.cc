#include "events/event_stream.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <span>
#include <utility>

#include "base/check.h"

namespace kvasir {
namespace {

// Returns the most blocks of one batch: a snapshot's, or what the log has room for.
uint64_t MostBlocks(uint32_t num_nodes) { return std::max<uint64_t>(num_nodes, 64); }

}  // namespace

EventStream::EventStream(Options options, KvEventLog& log)
    : options_(std::move(options)),
      hash_key_(options_.hash_key),
      log_(log),
      mirror_(options_.num_nodes, options_.block_tokens),
      writer_(options_.format, options_.block_tokens, MostBlocks(options_.num_nodes)),
      told_(options_.num_nodes),
      next_sequence_(options_.first_sequence),
      age_(std::make_shared<const int>(0)) {
  path_.reserve(options_.num_nodes);
}

uint64_t EventStream::TableBytes(uint32_t num_nodes, uint32_t block_tokens) {
  return KvEventMirror::BytesFor(num_nodes, block_tokens) +
         EventWriter::BytesFor(block_tokens, MostBlocks(num_nodes)) +
         uint64_t{num_nodes} * 2 * sizeof(uint32_t);
}

// Returns the bytes of what is kept, of one snapshot on its way, and of the next one.
uint64_t EventStream::MostPayloadBytes(uint32_t num_nodes, uint32_t block_tokens) {
  return kMostKeptBytes + 2 * EventWriter::MaxBytes(block_tokens, MostBlocks(num_nodes));
}

uint64_t EventStream::allocated_bytes() const {
  return mirror_.allocated_bytes() + writer_.allocated_bytes() +
         (told_.capacity() + path_.capacity()) * sizeof(uint32_t);
}

std::optional<EventBatch> EventStream::Advance(uint64_t now_ns, double unix_s) {
  const uint32_t ended = log_.num_erases_ended();  // their events are taken below
  DropErased(now_ns);
  // The log may be lost again by the time that this is seen.
  if (fills_before_ && log_.num_fills() != *fills_before_) {
    fills_before_.reset();
    is_silent_ = wants_snapshot_ = true;
  }
  if (fills_before_) return std::nullopt;
  if (log_.is_lost()) {
    Lose(now_ns);
    return std::nullopt;
  }
  writer_.Begin(unix_s);
  bool has_events = false;
  log_.Take([&](const KvEventLog::Event& event, std::span<const TokenId> tokens) {
    Apply(event, tokens);
    has_events = true;
  });
  NoteErases(now_ns);  // of which some events were taken already
  std::span<const std::byte> bytes = writer_.End();
  const bool repeats = wants_snapshot_ && now_ns >= next_snapshot_ns_ && ended == num_erases_;
  if (repeats) {
    writer_.Wipe();
    writer_.Begin(unix_s);
    WriteSnapshot();
    bytes = writer_.End();
    next_snapshot_ns_ = now_ns + kSnapshotPauseNs;
    wants_snapshot_ = is_silent_ = false;
  }
  std::optional<EventBatch> batch;
  try {
    if (repeats || (has_events && !is_silent_)) batch = Keep(bytes, repeats);
  } catch (const std::bad_alloc&) {  // what it lacks comes with the next snapshot
    is_silent_ = wants_snapshot_ = true;
  }
  writer_.Wipe();
  return batch;
}

std::optional<uint64_t> EventStream::due_ns() const {
  std::optional<uint64_t> due;
  if (!fills_before_ && (wants_snapshot_ || log_.is_lost())) due = next_snapshot_ns_;
  for (const ErasedAge& erased : erased_) due = std::min(due.value_or(UINT64_MAX), erased.end_ns);
  return due;
}

// Forgets what was kept before an erase.
void EventStream::NoteErases(uint64_t now_ns) {
  const uint32_t erases = log_.num_erases();
  if (erases == num_erases_) return;
  num_erases_ = erases;
  kept_.clear();
  kept_bytes_ = 0;
  erased_.push_back({age_, now_ns + kErasePauseNs});
  age_ = std::make_shared<const int>(0);
  is_silent_ = wants_snapshot_ = true;
}

// Does as NoteErases, and ends connections whose slow subscribers have not taken a message of
// before in time.
void EventStream::DropErased(uint64_t now_ns) {
  NoteErases(now_ns);
  std::erase_if(erased_, [](const ErasedAge& erased) { return erased.age.expired(); });
  const auto is_over = [&](const ErasedAge& erased) { return erased.end_ns <= now_ns; };
  if (std::ranges::none_of(erased_, is_over)) return;
  options_.drop_queues();
  erased_.clear();
}

// Has the cache's thread write the mirror anew, and drops what is left of before.
void EventStream::Lose(uint64_t now_ns) {
  log_.Take([](const KvEventLog::Event&, std::span<const TokenId>) {});
  if (now_ns < next_snapshot_ns_) return;
  fills_before_ = log_.num_fills();
  options_.ask_fill();
}

void EventStream::Apply(const KvEventLog::Event& event, std::span<const TokenId> tokens) {
  if (event.is_stored) {
    mirror_.Put(event.node, event.parent, event.key, tokens);
    if (!is_silent_) WriteBlock(event.node);
    return;
  }
  if (!mirror_.at(event.node).is_here) return;
  if (!is_silent_) writer_.Removed(HashOf(event.node));
  mirror_.Remove(event.node);
}

// Writes each block with those of its ancestors that were not written yet, from the first one on.
void EventStream::WriteSnapshot() {
  writer_.Cleared();
  ++num_snapshots_;
  for (uint32_t node = 0; node < mirror_.size(); ++node) {
    for (uint32_t at = node;
         at != KvEventMirror::kNoParent && mirror_.at(at).is_here && told_[at] != num_snapshots_;
         at = mirror_.at(at).parent) {
      told_[at] = num_snapshots_;
      path_.push_back(at);
    }
    for (; !path_.empty(); path_.pop_back()) WriteBlock(path_.back());
  }
}

void EventStream::WriteBlock(uint32_t node) {
  const uint32_t parent = mirror_.at(node).parent;
  const bool is_first = parent == KvEventMirror::kNoParent;
  writer_.Stored(is_first ? std::nullopt : std::optional(HashOf(parent)), HashOf(node),
                 mirror_.tokens(node));
}

// Returns 63 bits, so that readers with signed numbers take it; never 0.
uint64_t EventStream::HashOf(uint32_t node) {
  KvEventMirror::Block& block = mirror_.at(node);
  if (block.hash == 0) {
    const Digest digest = hash_key_.Of(std::as_bytes(std::span(block.key)));
    std::memcpy(&block.hash, digest.data(), sizeof(block.hash));
    block.hash = std::max<uint64_t>(block.hash >> 1, 1);
  }
  return block.hash;
}

// Numbers the batch. Where payloads take more than is planned, what is kept for replays goes first,
// then what waits for sockets: those whose connections end come back and get a snapshot.
EventBatch EventStream::Keep(std::span<const std::byte> bytes, bool is_snapshot) {
  const auto has_room = [&] {
    return memory_->live_bytes.load(std::memory_order_relaxed) + bytes.size() <=
           MostPayloadBytes(options_.num_nodes, options_.block_tokens);
  };
  if (!has_room()) {
    kept_.clear();
    kept_bytes_ = 0;
  }
  if (!has_room()) options_.drop_queues();
  EventBatch batch{.sequence = next_sequence_++,
                   .num_blocks = writer_.num_blocks(),
                   .is_snapshot = is_snapshot,
                   .payload = std::make_shared<const EventPayload>(bytes, memory_, age_)};
  kept_.push_back(batch);
  kept_bytes_ += bytes.size();
  while (kept_.size() > kMostKept || kept_bytes_ > kMostKeptBytes) {
    kept_bytes_ -= kept_.front().payload->bytes().size();
    kept_.pop_front();
  }
  return batch;
}

std::optional<std::vector<EventBatch>> EventStream::From(uint64_t sequence) const {
  if (is_silent_ || fills_before_ || log_.is_lost()) return std::nullopt;
  sequence = std::max(sequence, options_.first_sequence);
  const uint64_t first = next_sequence_ - kept_.size();
  if (sequence < first) return std::nullopt;
  const uint64_t skipped = std::min<uint64_t>(sequence - first, kept_.size());
  return std::vector(kept_.begin() + static_cast<ptrdiff_t>(skipped), kept_.end());
}

}  // namespace kvasir
