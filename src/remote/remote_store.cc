#include "remote/remote_store.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/random.h"
#include "base/random_bytes.h"
#include "base/result.h"

namespace kvasir {
namespace {

// Takes what a store has from the arenas, in the order of RemoteStore's fields.
void TakeAll(const RemoteTierOptions& options, Arena& index, Arena& out) {
  RemoteNames(index, options.num_names);
  index.TakeArray<RemoteBuffer>(options.num_buffers());
  FixedQueue(index, options.num_buffers());
  FixedQueue(index, options.num_buffers());
  out.Take(options.num_buffers() * RoundUp(options.value_bytes(), 64));
  out.Take(RemoteStore::kProbeBytes);
}

uint64_t UnixDay() { return static_cast<uint64_t>(UnixS()) / 86'400; }

}  // namespace

const char* ToString(RemoteStats::State state) {
  switch (state) {
    case RemoteStats::State::kConnecting:
      return "connecting";
    case RemoteStats::State::kOn:
      return "on";
    case RemoteStats::State::kOff:
      return "off";
  }
  return "?";
}

uint64_t RemoteStore::IndexBytes(const RemoteTierOptions& options) {
  Arena index, out;
  TakeAll(options, index, out);
  return index.used() + OwnerKeys::BytesFor(kMaxOwners) + kMaxOwners * sizeof(RemoteOwner);
}

uint64_t RemoteStore::BufferBytes(const RemoteTierOptions& options) {
  Arena index, out;
  TakeAll(options, index, out);
  return out.used();
}

Result<std::unique_ptr<RemoteStore>> RemoteStore::Create(const RemoteTierOptions& options) {
  Arena index, out;
  TakeAll(options, index, out);
  KV_ASSIGN(Arena index_memory, Arena::Create(index.used()));
  KV_ASSIGN(Arena out_memory, Arena::Create(out.used()));
  KV_ASSIGN(OwnerKeys keys, OwnerKeys::Create(kMaxOwners));
  return std::unique_ptr<RemoteStore>(
      new RemoteStore(options, std::move(index_memory), std::move(out_memory), std::move(keys)));
}

RemoteStore::RemoteStore(const RemoteTierOptions& tier_options, Arena index, Arena out,
                         OwnerKeys keys_area)
    : options(tier_options),
      keys(options.fleet),
      epochs(options.epochs),
      start_ns(MonotonicNs()),
      index_arena(std::move(index)),
      buffer_arena(std::move(out)),
      owner_keys(std::move(keys_area)),
      owners(kMaxOwners),
      names(index_arena, options.num_names),
      buffers(index_arena.TakeArray<RemoteBuffer>(options.num_buffers())),
      values(buffer_arena.Take(options.num_buffers() * RoundUp(options.value_bytes(), 64))),
      probe(buffer_arena.Take(kProbeBytes)),
      num_buffers(options.num_buffers()),
      reads(index_arena, num_buffers),
      writes(index_arena, num_buffers) {
  std::fill_n(buffers, num_buffers, RemoteBuffer{});
  if (options.mode == RemoteMode::kRead) load_bytes_per_s = 30e6;  // until it is measured
  stats.kind = "redis";
  stats.host = options.address.text();
}

uint32_t RemoteStore::NowS() const {
  return static_cast<uint32_t>((MonotonicNs() - start_ns) / 1'000'000'000) + 1;
}

std::span<std::byte> RemoteStore::ValueOf(uint32_t buffer) const {
  return {values + buffer * RoundUp(options.value_bytes(), 64), options.value_bytes()};
}

std::optional<uint32_t> RemoteStore::FreeBuffer() const {
  if (num_reads + num_writes >= num_buffers) return std::nullopt;
  for (uint32_t i = 0; i < num_buffers; ++i) {
    const uint32_t buffer = (next_buffer + i) % num_buffers;
    if (buffers[buffer].use == RemoteBuffer::Use::kFree) return buffer;
  }
  return std::nullopt;
}

void RemoteStore::FreeBufferOf(uint32_t buffer) {
  const RemoteBuffer::Use use = buffers[buffer].use;
  const bool is_write = use == RemoteBuffer::Use::kSealing || use == RemoteBuffer::Use::kQueued;
  --(is_write ? num_writes : num_reads);
  buffers[buffer] = {};
}

std::optional<OwnerId> RemoteStore::OwnerOf(const Digest& owner) {
  if (const auto found = owner_keys.Find(owner)) return found;
  auto made = owner_keys.Add({.owner = owner, .key = {}, .namespace_id = {}});
  if (!made) {  // the place of one that nothing is being done for, each in turn
    for (size_t tries = 0; tries < owners.size() && !made; ++tries) {
      const size_t i = next_owner;
      next_owner = (next_owner + 1) % owners.size();
      const RemoteOwner& one = owners[i];
      const bool is_busy =
          one.is_erasing() || one.num_forgets > 0 ||
          std::any_of(buffers, buffers + num_buffers, [&](const RemoteBuffer& buffer) {
            return buffer.use != RemoteBuffer::Use::kFree && buffer.owner == OwnerId(i);
          });
      if (is_busy) continue;
      // Its epoch was noted already, or is noted when an erase that it waits for is done.
      erased.push_back({.owner = owner_keys.owner_of(OwnerId(i))});
      names.RemoveOwner(OwnerId(i));
      owner_keys.Release(OwnerId(i));
      made = owner_keys.Add({.owner = owner, .key = {}, .namespace_id = {}});
    }
  }
  if (made) at(*made) = {.name = keys.OwnerName(owner), .wants_sync = true};
  return made;
}

void RemoteStore::SetEpoch(OwnerId owner, const OwnerEpoch& epoch) {
  const bool is_same = at(owner).epoch == epoch.epoch && owner_keys.key_of(owner) == epoch.random;
  if (at(owner).epoch != 0 && !is_same) CancelOwner(owner);
  at(owner).epoch = epoch.epoch;
  at(owner).wants_sync = false;
  owner_keys.SetKey(owner, epoch.random);
}

void RemoteStore::CancelOwner(OwnerId owner) {
  names.RemoveOwner(owner);
  for (uint32_t i = 0; i < num_buffers; ++i) {
    RemoteBuffer& buffer = buffers[i];
    if (buffer.use == RemoteBuffer::Use::kFree || buffer.owner != owner) continue;
    buffer.is_erased = true;
    if (buffer.use == RemoteBuffer::Use::kArrived) buffer.use = RemoteBuffer::Use::kFailed;
  }
}

bool RemoteStore::IsOverDaily(bool used_again) {
  if (!options.daily_bytes) return false;
  BeginDay(UnixDay());
  const uint64_t most = used_again ? *options.daily_bytes : *options.daily_bytes / 2;
  return stats.written_today_bytes + (num_writes + 1) * options.value_bytes() > most;
}

void RemoteStore::BeginDay(uint64_t day) {
  if (written_day != day) stats.written_today_bytes = 0;
  written_day = day;
}

void RemoteStore::EndWrite(uint32_t buffer, bool stored) {
  const RemoteBuffer& out = buffers[buffer];
  RemoteNames::Entry* const entry = names.Find(out.name);
  if (entry != nullptr && entry->is_writing && !out.is_erased) {
    entry->is_writing = false;
    if (stored) {
      entry->seen_s = entry->refreshed_s = NowS();
    } else {
      RemoteNames::Remove(entry);
    }
  }
  if (stored) {
    ++stats.written_blocks;
    stats.written_bytes += options.value_bytes();
    BeginDay(UnixDay());
    stats.written_today_bytes += options.value_bytes();
  } else if (!out.is_erased) {
    ++stats.dropped_failed;
    num_failed += out.use == RemoteBuffer::Use::kQueued;  // or it could not be sealed
  }
  FreeBufferOf(buffer);
}

void RemoteStore::EndRead(uint32_t buffer, ReadState ended) {
  RemoteBuffer& in = buffers[buffer];
  const bool has_come = ended == ReadState::kArrived && !in.is_erased;
  in.use = has_come ? RemoteBuffer::Use::kArrived : RemoteBuffer::Use::kFailed;
  in.ended = ended;
  if (in.refs == 0) FreeBufferOf(buffer);
}

void RemoteStore::TurnOffLocked(const std::string& why) {
  if (FaultActive(Fault::kDeafBreaker)) return;
  // Each thread finds out by itself; the first one has opened the breaker.
  if (state == State::kOff && MonotonicNs() < breaker.retry_ns()) return;
  uint64_t random = 0;
  (void)FillRandom({reinterpret_cast<uint8_t*>(&random), sizeof(random)});
  breaker.Open(MonotonicNs(), random);
  state = State::kOff;
  reason = why;
  reader_wake.notify_all();
  writer_wake.notify_all();
  looker_wake.notify_all();
}

void RemoteStore::TurnOff(const std::string& why) {
  {
    MutexLock lock(mutex);
    const bool is_news = reason != why;
    TurnOffLocked(why);
    if (!is_news) return;
  }
  Log(LogLevel::kWarning, "remote tier: off; prompts are computed until it answers",
      LogField("host", options.address.text()), LogField("reason", why));
}

Status RemoteStore::Connect(RedisConnection& connection, const RedisConnection::Waits& waits) {
  SocketAddresses at_now;
  {
    MutexLock lock(mutex);
    at_now = addresses;
  }
  return connection.Open(options.address, at_now, options.password, waits, options.tls.get());
}

void RemoteStore::CountFault(const Error& error) {
  {
    MutexLock lock(mutex);
    if (error.code == Code::kCancelled) return;  // it was counted as a stall
    ++stats.fault_io;
    if (!breaker.Count(ErrorWindow::Kind::kError, MonotonicNs())) return;
  }
  TurnOff(error.message);
}

void RemoteStore::CountStall() {
  {
    MutexLock lock(mutex);
    ++stats.fault_stalled;
    if (!breaker.Count(ErrorWindow::Kind::kStall, MonotonicNs())) return;
  }
  TurnOff("it stalls");
}

void RemoteStore::ObserveLook(double ns) {
  look_ns = look_ns == 0 ? ns : look_ns * 0.7 + std::min(ns, 2 * look_ns) * 0.3;
}

double RemoteStore::ValueNs() const {
  const double bytes = static_cast<double>(options.value_bytes());
  return stats.rtt_ms * 1e6 + (load_bytes_per_s > 0 ? bytes * 1e9 / load_bytes_per_s : 0);
}

bool RemoteStore::is_on() const {
  MutexLock lock(mutex);
  return state == State::kOn;
}

RedisConnection::Waits RemoteStore::WaitsOf(const uint64_t& start_ns_of, const UsualTime& usual) {
  return [this, &start_ns_of, &usual, counted_ns = uint64_t{0}, stalls = uint32_t{0}]() mutable {
    if (is_stopping.load(std::memory_order_relaxed) || !is_on()) return false;
    if (counted_ns != start_ns_of) stalls = 0;
    counted_ns = start_ns_of;
    double usual_ns = usual.usual_ns;
    {
      MutexLock lock(mutex);
      usual_ns = std::max(usual_ns, ValueNs());
    }
    const double late_ns = 4 * usual_ns + static_cast<double>(options.stall_ns);
    if (static_cast<double>(MonotonicNs() - start_ns_of) > late_ns * (stalls + 1)) {
      ++stalls;
      CountStall();
    }
    return true;
  };
}

}  // namespace kvasir
