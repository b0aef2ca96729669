#include "remote/remote_looker.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "base/clock.h"
#include "base/hex.h"
#include "base/log.h"
#include "base/random_bytes.h"
#include "base/result.h"

namespace kvasir {
namespace {

constexpr uint64_t kConnectNs = 500'000'000, kProbeNs = 5'000'000'000;

// Returns at most `most` indices of [begin, end), spread evenly; the last one is end - 1.
std::vector<uint32_t> Spread(uint32_t begin, uint32_t end, uint32_t most) {
  std::vector<uint32_t> picks;
  const uint32_t num = std::min(most, end - begin);
  for (uint32_t i = 1; i <= num; ++i) {
    picks.push_back(begin + static_cast<uint32_t>(uint64_t{end - begin} * i / num) - 1);
  }
  return picks;
}

}  // namespace

bool RemoteLooker::Begin(LookFor what, std::function<void()> done) {
  {
    MutexLock lock(store_.mutex);
    if (store_.state.now != RemoteStore::State::kOn || what.names.empty()) return false;
    if (looks_.size() >= kMostLooks || !store_.OwnerOf(what.owner)) return false;
    looks_.push_back({std::move(what), std::move(done)});
    ++store_.figures.stats.lookups;
  }
  store_.looker_wake.notify_one();
  return true;
}

// Returns false when the tier ends.
bool RemoteLooker::WaitForWork() {
  MutexLock lock(store_.mutex);
  for (;;) {
    if (store_.is_stopping.load(std::memory_order_relaxed)) return false;
    const uint64_t now = MonotonicNs();
    const bool is_on = store_.state.now == RemoteStore::State::kOn;
    const bool is_asked = is_on && std::ranges::any_of(store_.owners.all, &RemoteOwner::is_due);
    const bool connects = store_.state.now == RemoteStore::State::kConnecting ||
                          (!is_on && now >= store_.state.breaker.retry_ns());
    const bool is_late = std::ranges::any_of(store_.erasures.failed,
                                             [&](const auto& one) { return one.due_ns <= now; });
    if (is_late || !store_.erasures.notes.empty() || !looks_.empty() || is_asked || connects ||
        (is_on && now >= polled_ns_ + kPollNs)) {
      return true;
    }
    lock.WaitFor(store_.looker_wake, std::chrono::milliseconds(200));
  }
}

void RemoteLooker::Loop() {
  while (WaitForWork()) {
    WriteNotes();
    EraseAgain();
    std::optional<Look> look;
    bool is_on, connects;
    {
      MutexLock lock(store_.mutex);
      is_on = store_.state.now == RemoteStore::State::kOn;
      connects = store_.state.now == RemoteStore::State::kConnecting ||
                 MonotonicNs() >= store_.state.breaker.retry_ns();
      if (!looks_.empty()) {
        look = std::move(looks_.front());
        looks_.pop_front();
      }
    }
    if (!is_on) {
      if (look) {
        look->done();
        store_.progress.Call();
      } else if (connects) {
        TryConnect();
      }
      continue;
    }
    if (look) {
      Answer(*look);
    } else {
      SyncDue();
    }
  }
  WriteNotes();
  std::deque<Look> left;
  {
    MutexLock lock(store_.mutex);
    left.swap(looks_);
  }
  for (Look& look : left) look.done();
}

void RemoteLooker::TryConnect() {
  const uint64_t start_ns = MonotonicNs();
  uint64_t most_ns = kConnectNs;
  const auto waits = [&] {
    return !store_.is_stopping.load(std::memory_order_relaxed) &&
           MonotonicNs() < start_ns + most_ns;
  };
  Result<SocketAddresses> found = lookup_.Ask(store_.options.address, waits);
  Status done;
  if (found) {
    {
      MutexLock lock(store_.mutex);
      store_.state.addresses = std::move(*found);
    }
    done = store_.Connect(*client_, waits);
  } else {
    done = tl::unexpected(found.error());
  }
  most_ns += kProbeNs;
  if (done) done = Probe(waits);
  if (store_.is_stopping.load(std::memory_order_relaxed)) return;
  if (!done) {
    client_->Close();
    store_.TurnOff(done.error().message);
    return;
  }
  {
    MutexLock lock(store_.mutex);
    store_.state.now = RemoteStore::State::kOn;
    store_.state.reason.clear();
    store_.state.on_ns = MonotonicNs();
    store_.state.breaker.Close(store_.state.on_ns);
    for (RemoteOwner& owner : store_.owners.all) owner.wants_sync |= !owner.name.empty();
  }
  store_.writer_wake.notify_one();  // removals wait for it
  polled_ns_ = MonotonicNs();
  Log(LogLevel::kInfo, "remote tier: on", LogField("host", store_.options.address.text()));
  store_.progress.Call();
}

Status RemoteLooker::Connect() {
  client_->CloseStale();
  if (client_->is_open()) return {};
  began_ns_ = MonotonicNs();
  return store_.Connect(*client_, waits_);
}

// Measures the store by a value of 1 MiB, so that a speed is always known.
Status RemoteLooker::Probe(const StoreClient::Waits& waits) {
  uint64_t least_ns = UINT64_MAX;
  for (int i = 0; i < 5; ++i) {  // this machine may be late with any of them
    const uint64_t start_ns = MonotonicNs();
    KV_TRY(client_->Ping(waits));
    least_ns = std::min(least_ns, MonotonicNs() - start_ns);
  }
  usual_ = {};
  usual_.Observe(least_ns);
  if (store_.options.address.s3 && store_.options.address.has_tls) KV_TRY(ConnectAhead(waits));
  double bytes_per_s = 0;
  if (store_.options.mode == RemoteMode::kReadWrite) {
    KV_ASSIGN(bytes_per_s, ProbeBytesPerS(waits));
  }
  MutexLock lock(store_.mutex);
  store_.figures.stats.rtt_ms = usual_.usual_ns * 1e-6;
  store_.figures.look_ns = 2 * usual_.usual_ns;
  if (bytes_per_s > 0)
    store_.figures.load_bytes_per_s = store_.figures.wire_bytes_per_s = bytes_per_s;
  return {};
}

Status RemoteLooker::ConnectAhead(const StoreClient::Waits& waits) {
  constexpr uint32_t kAsked = kPicks + 1;  // and the owner's object
  for (uint32_t i = 0; i < kAsked; ++i) {
    KV_TRY(client_->Start(
        {.what = StoreRequest::What::kFind, .id = i, .name = store_.keys.prefix() + "/probe/none"},
        waits));
  }
  for (uint32_t i = 0; i < kAsked; ++i) KV_TRY(client_->Next(waits));  // whatever it says
  return {};
}

Result<double> RemoteLooker::ProbeBytesPerS(const StoreClient::Waits& waits) {
  using What = StoreRequest::What;
  std::array<uint8_t, 8> random;
  KV_TRY(FillRandom(random));
  const std::string name = store_.keys.prefix() + "/probe/" + ToHex(random);
  const std::span<std::byte> probe = store_.buffers.probe();
  KV_TRY(FillRandom({reinterpret_cast<uint8_t*>(probe.data()), probe.size()}));
  const auto ask = [&](StoreRequest request) -> Result<StoreReply> {
    request.name = name;
    KV_ASSIGN(StoreReply reply, client_->Ask(std::move(request), waits));
    if (reply.is_refused()) return Fail(Code::kUnavailable, "{}", reply.words);
    return reply;
  };
  KV_ASSIGN(const StoreReply put, ask({.what = What::kPut, .value = probe, .ttl_s = 60}));
  const uint64_t start_ns = MonotonicNs();
  KV_ASSIGN(const StoreReply got, ask({.what = What::kGet, .into = probe}));
  const uint64_t took_ns = std::max<uint64_t>(MonotonicNs() - start_ns, 1);
  if (!put.is_done() || !got.is_done() || got.bytes != probe.size()) {
    return Fail(Code::kUnavailable, "it does not keep a value of 1 MiB");
  }
  KV_TRY(ask({.what = What::kRemove}));
  return static_cast<double>(probe.size()) * 1e9 / static_cast<double>(took_ns);
}

void RemoteLooker::Answer(Look& look) {
  const uint64_t start_ns = MonotonicNs();
  Status done = Connect();
  if (done && look.what.is_chain) {
    const Result<uint32_t> found = FindChain(look.what);
    if (found) {
      std::vector<uint32_t> all(*found);
      std::iota(all.begin(), all.end(), 0);
      Mark(look.what, all);
    } else {
      done = tl::unexpected(found.error());
    }
  } else if (done) {
    done = FindEach(look.what);
  }
  if (done) {
    MutexLock lock(store_.mutex);
    store_.figures.ObserveLook(static_cast<double>(MonotonicNs() - start_ns));
    store_.figures.stats.rtt_ms = usual_.usual_ns * 1e-6;
  } else {
    store_.CountFault(done.error());
  }
  look.done();
  store_.progress.Call();
}

// Returns how many records of a chain the store has, from the first one on: 32 spread over all of
// them say between which two it ends, and 32 between those where.
Result<uint32_t> RemoteLooker::FindChain(const LookFor& what) {
  uint32_t begin = 0;
  auto end = static_cast<uint32_t>(what.names.size());
  for (int i = 0; i < 2 && begin < end; ++i) {
    Round round{.names = what.names, .picks = Spread(begin, end, kPicks), .found = {}};
    KV_TRY(Ask(what.owner, round));
    uint32_t num = 0;
    while (num < round.picks.size() && round.found[num]) ++num;
    if (num > 0) begin = round.picks[num - 1] + 1;
    if (num < round.picks.size()) end = round.picks[num];
  }
  return begin;
}

Status RemoteLooker::FindEach(const LookFor& what) {
  const auto num_names = static_cast<uint32_t>(what.names.size());
  for (uint32_t begin = 0; begin < num_names; begin += kAskedAtOnce) {
    Round round{.names = what.names, .picks = {}, .found = {}};
    for (uint32_t i = begin; i < std::min(num_names, begin + kAskedAtOnce); ++i) {
      round.picks.push_back(i);
    }
    KV_TRY(Ask(what.owner, round));
    std::vector<uint32_t> found;
    for (size_t i = 0; i < round.picks.size(); ++i) {
      if (round.found[i]) found.push_back(round.picks[i]);
    }
    Mark(what, found);
  }
  return {};
}

void RemoteLooker::Mark(const LookFor& what, std::span<const uint32_t> found) {
  MutexLock lock(store_.mutex);
  const auto owner = store_.owner_keys.Find(what.owner);
  if (!owner || !store_.at(*owner).is_usable()) return;
  for (const uint32_t i : found) {
    RemoteNames::Entry* const entry = store_.names.Put(what.names[i], *owner);
    if (entry != nullptr && !entry->is_writing) entry->seen_s = store_.NowS();
  }
}

// Asks for the round's picks and for the owner's object, once more where that has changed.
Status RemoteLooker::Ask(const Digest& owner, Round& round) {
  bool is_old = true;
  for (int i = 0; i < 3 && is_old; ++i) {
    began_ns_ = MonotonicNs();
    KV_TRY(AskOnce(owner, round, &is_old));
    usual_.Observe(MonotonicNs() - began_ns_);
  }
  return {};
}

Status RemoteLooker::AskOnce(const Digest& owner, Round& round, bool* is_old) {
  const std::string name = store_.keys.OwnerName(owner);
  const auto known = [&] {
    MutexLock lock(store_.mutex);
    const auto id = store_.owner_keys.Find(owner);
    return id ? OwnerEpoch{store_.at(*id).epoch, store_.owner_keys.key_of(*id)} : OwnerEpoch();
  };
  const OwnerEpoch before = known();
  OwnerBytes bytes;
  KV_TRY(client_->Start(PeekOwner(name, bytes), waits_));
  const size_t picks = before.epoch != 0 ? round.picks.size() : 0;
  for (size_t i = 0; i < picks; ++i) {
    KV_TRY(client_->Start({.what = StoreRequest::What::kFind,
                           .id = i + 1,
                           .name = RemoteName(name, before.random, round.names[round.picks[i]])},
                          waits_));
  }
  round.found.assign(round.picks.size(), false);
  Result<StoredOwner> stored = StoredOwner();
  std::string refused;
  for (size_t i = 0; i < picks + 1; ++i) {
    KV_ASSIGN(const StoreReply reply, client_->Next(waits_));
    if (reply.id == 0) {
      stored = OwnerOfReply(reply, store_.keys, name, bytes);
    } else {
      round.found[reply.id - 1] = reply.is_done();
      if (reply.is_refused()) refused = reply.words;
    }
  }
  if (!stored) return tl::unexpected(std::move(stored).error());
  if (!refused.empty()) return Fail(Code::kUnavailable, "{}", refused);
  KV_TRY(Settle(*client_, owner, name, *stored, waits_));
  const OwnerEpoch after = known();
  *is_old = after.epoch != before.epoch || after.random != before.random;
  if (*is_old) round.found.assign(round.picks.size(), false);
  return {};
}

}  // namespace kvasir
