#include "remote/remote_store.h"

#include <algorithm>

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
  RemoteBuffers(index, out, options);
  RemoteQueues(index, options.num_buffers());
}

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

void RemoteFigures::BeginDay() {
  const auto day = static_cast<uint64_t>(UnixS()) / 86'400;
  if (written_day != day) stats.written_today_bytes = 0;
  written_day = day;
}

void RemoteFigures::ObserveValue(uint64_t ns, uint64_t bytes, uint64_t whole_bytes) {
  // The mean of times, not of speeds: what had come already takes no time.
  const auto observe = [ns](double* bytes_per_s, uint64_t of_bytes) {
    const double ns_per_byte = static_cast<double>(ns) / static_cast<double>(of_bytes);
    const double before = *bytes_per_s > 0 ? 1e9 / *bytes_per_s : ns_per_byte;
    *bytes_per_s = 1e9 / std::max(before * 0.95 + ns_per_byte * 0.05, 1e-3);
  };
  observe(&load_bytes_per_s, whole_bytes);
  observe(&wire_bytes_per_s, bytes);
}

void RemoteFigures::ObserveLook(double ns) {
  look_ns = look_ns == 0 ? ns : look_ns * 0.7 + std::min(ns, 2 * look_ns) * 0.3;
}

double RemoteFigures::ValueNs(uint64_t whole_bytes) const {
  const auto bytes = static_cast<double>(whole_bytes);
  return stats.rtt_ms * 1e6 + (load_bytes_per_s > 0 ? bytes * 1e9 / load_bytes_per_s : 0);
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
  KV_TRY(StoreClient::Create(options));  // what it needs is there
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
      owners{.all = std::vector<RemoteOwner>(kMaxOwners)},
      names(index_arena, options.num_names),
      buffers(index_arena, buffer_arena, options),
      queues(index_arena, options.num_buffers()) {
  if (options.mode == RemoteMode::kRead) figures.load_bytes_per_s = 30e6;  // until it is measured
  figures.stats.kind = options.address.s3 ? "s3" : "redis";
  figures.stats.host = options.address.text();
}

uint32_t RemoteStore::NowS() const {
  return static_cast<uint32_t>((MonotonicNs() - start_ns) / 1'000'000'000) + 1;
}

std::optional<uint32_t> RemoteStore::FreeBuffer() const {
  if (queues.num_reads + queues.num_writes >= buffers.size()) return std::nullopt;
  for (uint32_t i = 0; i < buffers.size(); ++i) {
    const uint32_t buffer = (queues.next + i) % buffers.size();
    if (buffers[buffer].use == RemoteBuffer::Use::kFree) return buffer;
  }
  return std::nullopt;
}

void RemoteStore::FreeBufferOf(uint32_t buffer) {
  const RemoteBuffer::Use use = buffers[buffer].use;
  const bool is_write = use == RemoteBuffer::Use::kSealing || use == RemoteBuffer::Use::kQueued;
  --(is_write ? queues.num_writes : queues.num_reads);
  buffers[buffer] = {};
}

std::optional<OwnerId> RemoteStore::OwnerOf(const Digest& owner) {
  if (const auto found = owner_keys.Find(owner)) return found;
  auto made = owner_keys.Add({.owner = owner, .key = {}, .namespace_id = {}});
  if (!made) {  // the place of one that nothing is being done for, each in turn
    for (size_t tries = 0; tries < owners.all.size() && !made; ++tries) {
      const size_t i = owners.next;
      owners.next = (owners.next + 1) % owners.all.size();
      const RemoteOwner& one = owners.all[i];
      const bool is_busy =
          one.is_erasing() || one.num_forgets > 0 ||
          std::ranges::any_of(buffers.all(), [&](const RemoteBuffer& buffer) {
            return buffer.use != RemoteBuffer::Use::kFree && buffer.owner == OwnerId(i);
          });
      if (is_busy) continue;
      // Its epoch was noted already, or is noted when an erase that it waits for is done.
      erasures.due.push_back({.owner = owner_keys.owner_of(OwnerId(i))});
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
  for (uint32_t i = 0; i < buffers.size(); ++i) {
    RemoteBuffer& buffer = buffers[i];
    if (buffer.use == RemoteBuffer::Use::kFree || buffer.owner != owner) continue;
    buffer.is_erased = true;
    if (buffer.use == RemoteBuffer::Use::kArrived) buffer.use = RemoteBuffer::Use::kFailed;
  }
}

bool RemoteStore::IsOverDaily(bool used_again) {
  if (!options.daily_bytes) return false;
  figures.BeginDay();
  const uint64_t most = used_again ? *options.daily_bytes : *options.daily_bytes / 2;
  return figures.stats.written_today_bytes + (queues.num_writes + 1) * options.value_bytes() > most;
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
    ++figures.stats.written_blocks;
    figures.stats.written_bytes += out.bytes;
    figures.BeginDay();
    figures.stats.written_today_bytes += out.bytes;
  } else if (!out.is_erased) {
    ++figures.stats.dropped_failed;
    queues.num_failed += out.use == RemoteBuffer::Use::kQueued;  // or it could not be sealed
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
  if (state.now == State::kOff && MonotonicNs() < state.breaker.retry_ns()) {
    // The thread that removes has found that it does not even answer.
    if (IsFull(state.reason)) state.reason = why;
    return;
  }
  uint64_t random = 0;
  (void)FillRandom({reinterpret_cast<uint8_t*>(&random), sizeof(random)});
  state.breaker.Open(MonotonicNs(), random);
  state.now = State::kOff;
  state.reason = why;
  reader_wake.notify_all();
  writer_wake.notify_all();
  looker_wake.notify_all();
}

void RemoteStore::TurnOff(const std::string& told) {
  const std::string why = StoreWords(told);
  {
    MutexLock lock(mutex);
    const bool is_news = state.reason != why;
    TurnOffLocked(why);
    if (!is_news) return;
  }
  Log(LogLevel::kWarning, "remote tier: off; prompts are computed until it answers",
      LogField("host", options.address.text()), LogField("reason", why));
}

std::unique_ptr<StoreClient> RemoteStore::NewClient() const {
  auto client = StoreClient::Create(options);
  KV_CHECK(client);  // Create has tried
  return std::move(*client);
}

Status RemoteStore::Connect(StoreClient& client, const StoreClient::Waits& waits) {
  SocketAddresses at_now;
  {
    MutexLock lock(mutex);
    at_now = state.addresses;
  }
  return client.Open(at_now, waits);
}

void RemoteStore::CountFault(const Error& error) {
  {
    MutexLock lock(mutex);
    if (error.code == Code::kCancelled) return;  // it was counted as a stall
    ++figures.stats.fault_io;
    if (!state.breaker.Count(ErrorWindow::Kind::kError, MonotonicNs())) return;
  }
  TurnOff(error.message);
}

void RemoteStore::CountStall() {
  {
    MutexLock lock(mutex);
    ++figures.stats.fault_stalled;
    if (!state.breaker.Count(ErrorWindow::Kind::kStall, MonotonicNs())) return;
  }
  TurnOff("it stalls");
}

bool RemoteStore::Compresses() const {
  return options.compresses == CompressWhen::kAlways ||
         (options.compresses == CompressWhen::kWhereSlow &&
          figures.wire_bytes_per_s < options.slow_bytes_per_s);
}

bool RemoteStore::Removes() const {
  MutexLock lock(mutex);
  return state.now == State::kOn || (state.now == State::kOff && IsFull(state.reason));
}

bool RemoteStore::is_on() const {
  MutexLock lock(mutex);
  return state.now == State::kOn;
}

StoreClient::Waits RemoteStore::WaitsOf(const uint64_t& start_ns_of, const UsualTime& usual) {
  struct Waited {
    uint64_t start_ns = 0, asked_ns = 0, ns = 0;
    uint32_t stalls = 0;
  };
  return [this, &start_ns_of, &usual, waited = Waited()]() mutable {
    if (is_stopping.load(std::memory_order_relaxed) || !Removes()) return false;
    if (waited.start_ns != start_ns_of) waited = {.start_ns = start_ns_of, .asked_ns = start_ns_of};
    // A client that waits asks more often. The rest is not the store's: on a busy machine this
    // thread did not run.
    const uint64_t now = MonotonicNs();
    waited.ns += std::min(now - waited.asked_ns, StoreClient::kWaitsNs);
    waited.asked_ns = now;
    double usual_ns = usual.usual_ns;
    {
      MutexLock lock(mutex);
      usual_ns = std::max(usual_ns, figures.ValueNs(options.value_bytes()));
    }
    const double late_ns = 4 * usual_ns + static_cast<double>(options.stall_ns);
    if (static_cast<double>(waited.ns) > late_ns * (waited.stalls + 1)) {
      ++waited.stalls;
      CountStall();
    }
    return true;
  };
}

}  // namespace kvasir
