// MemoryTier: a Tier in memory, as slow and as faulty as a test wants it.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/result.h"
#include "tier/tier.h"

namespace kvasir {

struct MemoryTierOptions {
  uint64_t payload_bytes = 0;
  uint32_t num_buffers = 64;
  uint64_t max_records = UINT64_MAX;  // the one used least recently leaves
  std::chrono::nanoseconds read_latency{0};
  uint64_t bytes_per_s = 0;  // of reads; 0: no limit
  // By the number of the read that reaches the tier's thread, from 0.
  std::optional<uint64_t> fails_at, damaged_at, stalls_at;
  uint64_t num_fail = 1;  // reads from `fails_at` on
  std::chrono::nanoseconds stall{0};
  bool refuses_writes = false;  // kOff
};

// Its thread serves reads one by one, in the order in which they were asked for: each takes the
// latency and its bytes' share of the bandwidth, in real time. What a test sees besides times
// follows from the order of the calls alone.
class MemoryTier : public Tier {
 public:
  explicit MemoryTier(const MemoryTierOptions& options)
      : options_(options), buffers_(options.num_buffers), thread_([this] { Loop(); }) {}
  ~MemoryTier() override {
    {
      MutexLock lock(mutex_);
      is_stopping_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }

  bool Has(const RecordName& name) const override {
    MutexLock lock(mutex_);
    const auto found = records_.find(KeyOf(name));
    return found != records_.end() && found->second.is_stored && !IsForgetting(found->second.owner);
  }
  void Touch(const RecordName& name) override {
    MutexLock lock(mutex_);
    const auto found = records_.find(KeyOf(name));
    if (found != records_.end()) found->second.used = ++clock_;
  }
  bool ReadyOwner(const Digest&) override { return true; }

  tl::expected<WriteId, WriteRefusal> BeginWrite(const RecordFacts& facts) override {
    MutexLock lock(mutex_);
    if (options_.refuses_writes || IsForgetting(facts.owner)) {
      return tl::unexpected(WriteRefusal::kOff);
    }
    if (records_.contains(KeyOf(facts.name))) return tl::unexpected(WriteRefusal::kKnown);
    if (facts.after && !records_.contains(KeyOf(*facts.after))) {
      return tl::unexpected(WriteRefusal::kOff);
    }
    const auto writes = std::ranges::count_if(
        buffers_, [](const Buffer& b) { return b.use == Use::kSealing || b.use == Use::kQueued; });
    const auto free = std::ranges::find(buffers_, Use::kFree, &Buffer::use);
    if (free == buffers_.end() || static_cast<size_t>(writes) >= buffers_.size() / 2) {
      return tl::unexpected(WriteRefusal::kNoBuffer);
    }
    *free = {.use = Use::kSealing, .name = facts.name};
    records_[KeyOf(facts.name)] = {
        .name = facts.name,
        .parent = facts.parent,
        .owner = facts.owner,
        .tokens = std::vector<TokenId>(facts.tokens.begin(), facts.tokens.end()),
        .after = facts.after,
        .payload = {},
        .used = ++clock_};
    return WriteId{static_cast<uint32_t>(free - buffers_.begin())};
  }
  void Seal(WriteId write, std::span<const std::byte> payload) override {
    KV_CHECK(payload.size() == options_.payload_bytes);
    std::vector<std::byte> copy(payload.begin(), payload.end());
    MutexLock lock(mutex_);
    at(write).payload = std::move(copy);
  }
  void EndWrite(WriteId write) override {
    {
      MutexLock lock(mutex_);
      at(write).use = Use::kQueued;
      queue_.push_back({.buffer = static_cast<uint32_t>(write)});
    }
    wake_.notify_all();
  }
  void CountDropped(WriteRefusal why, uint32_t) override {
    MutexLock lock(mutex_);
    if (why == WriteRefusal::kNoBuffer) ++stats_.dropped_buffer;
    if (why == WriteRefusal::kBudget) ++stats_.dropped_budget;
    if (why == WriteRefusal::kOff) ++stats_.dropped_failed;
  }

  std::optional<ReadId> BeginRead(const RecordName& name) override {
    std::optional<ReadId> read;
    {
      MutexLock lock(mutex_);
      const auto found = records_.find(KeyOf(name));
      const bool is_here = found != records_.end() && found->second.is_stored;
      if (!is_here || IsForgetting(found->second.owner)) return std::nullopt;
      const auto same = std::ranges::find_if(buffers_, [&](const Buffer& b) {
        return (b.use == Use::kReading || b.use == Use::kArrived) && b.name == name;
      });
      if (same != buffers_.end()) {
        ++same->refs;
        return ReadId{static_cast<uint32_t>(same - buffers_.begin())};
      }
      const auto free = std::ranges::find(buffers_, Use::kFree, &Buffer::use);
      if (free == buffers_.end()) return std::nullopt;
      *free = {.use = Use::kReading, .name = name, .refs = 1};
      read = ReadId{static_cast<uint32_t>(free - buffers_.begin())};
      queue_.push_back({.buffer = static_cast<uint32_t>(*read)});
    }
    wake_.notify_all();
    return read;
  }
  bool HasReadRoom() const override {
    MutexLock lock(mutex_);
    return std::ranges::find(buffers_, Use::kFree, &Buffer::use) != buffers_.end();
  }
  ReadState StateOf(ReadId read) const override {
    MutexLock lock(mutex_);
    const Use use = buffers_[static_cast<size_t>(read)].use;
    if (buffers_[static_cast<size_t>(read)].is_erased) return ReadState::kErased;
    if (use == Use::kReading) return ReadState::kReading;
    return use == Use::kArrived ? ReadState::kArrived : ReadState::kFailed;
  }
  bool Unseal(ReadId read, const RecordFacts& facts, std::span<std::byte> payload) const override {
    MutexLock lock(mutex_);
    const Buffer& in = buffers_[static_cast<size_t>(read)];
    if (in.use != Use::kArrived || in.is_damaged) return false;
    const Record& record = in.record;
    const bool is_right =
        record.name == facts.name && record.parent == facts.parent && record.owner == facts.owner &&
        std::ranges::equal(record.tokens, facts.tokens) && payload.size() == record.payload.size();
    if (is_right) std::ranges::copy(record.payload, payload.begin());
    return is_right;
  }
  void EndRead(ReadId read, ReadEnd end) override {
    MutexLock lock(mutex_);
    Buffer& in = buffers_[static_cast<size_t>(read)];
    KV_CHECK(in.refs > 0);
    --in.refs;
    if (end == ReadEnd::kDamaged && records_.erase(KeyOf(in.name)) > 0) ++stats_.fault_damaged;
    if (in.refs == 0 && in.use != Use::kReading) in = {};
  }
  void set_on_progress(std::function<void()> on_progress) override {
    MutexLock lock(mutex_);
    on_progress_ = std::move(on_progress);
  }

  void Flush(std::function<void(Result<TierFlushed>)> done) override {
    {
      MutexLock lock(mutex_);
      queue_.push_back({.flush = std::move(done), .stored_before = num_stored_});
    }
    wake_.notify_all();
  }
  void Erase(const Digest& owner, std::function<void(Result<TierErased>)> done) override {
    {
      MutexLock lock(mutex_);
      const TierErased erased = EraseWhere([&](const Record& one) { return one.owner == owner; });
      queue_.push_back({.erase = std::move(done), .erased = erased});
    }
    wake_.notify_all();
  }
  void Forget(ForgetFacts facts, std::function<void(Result<TierErased>)> done) override {
    {
      MutexLock lock(mutex_);
      const std::vector<BlockKey> kept = facts.kept ? facts.kept() : std::vector<BlockKey>();
      TierErased erased = EraseWhere(
          [&](const Record& one) KV_REQUIRES(mutex_) { return IsForgotten(one, facts, kept); });
      for (size_t i = facts.path.size(); i-- > 0;) {
        const BlockKey& key = facts.path[i];
        const bool stays =
            std::ranges::find(kept, key) != kept.end() ||
            std::ranges::any_of(records_, [&](const auto& other) {
              const Record& record = other.second;
              return record.after && record.after->key == key && record.name.key != key;
            });
        if (stays) continue;
        const TierErased more = EraseWhere(
            [&](const Record& one) { return one.owner == facts.owner && one.name.key == key; });
        erased.blocks += more.blocks;
        erased.bytes += more.bytes;
      }
      EndReadsOf(facts.owner);
      forgetting_.push_back(facts.owner);
      queue_.push_back({.erase = std::move(done), .erased = erased, .forgets = facts.owner});
    }
    wake_.notify_all();
  }
  TierStats Stats() const override {
    MutexLock lock(mutex_);
    TierStats stats = stats_;
    stats.folder = "memory";
    for (const auto& [key, record] : records_)
      ++(record.is_stored ? stats.blocks : stats.pending_blocks);
    stats.used_bytes = stats.blocks * options_.payload_bytes;
    return stats;
  }
  uint64_t num_reads() const {
    MutexLock lock(mutex_);
    return num_reads_;
  }

 private:
  enum class Use : uint8_t { kFree, kSealing, kQueued, kReading, kArrived, kFailed };
  struct Record {
    RecordName name;
    BlockKey parent{};
    Digest owner{};
    std::vector<TokenId> tokens;
    std::optional<RecordName> after;
    std::vector<std::byte> payload;
    uint64_t used = 0;
    bool is_stored = false;
  };
  struct Buffer {
    Use use = Use::kFree;
    RecordName name;
    uint32_t refs = 0;
    bool is_erased = false, is_damaged = false;
    std::vector<std::byte> payload;  // of a write
    Record record;                   // of a read
  };
  struct Work {
    std::optional<uint32_t> buffer;
    std::function<void(Result<TierFlushed>)> flush;
    std::function<void(Result<TierErased>)> erase;
    TierErased erased;
    std::optional<Digest> forgets;
    uint64_t stored_before = 0;
  };
  using Key = std::tuple<BlockKey, uint16_t, uint16_t>;
  static Key KeyOf(const RecordName& name) { return {name.key, name.layer_group, name.part}; }
  Buffer& at(WriteId write) KV_REQUIRES(mutex_) { return buffers_[static_cast<size_t>(write)]; }

  template <typename Leaves>
  TierErased EraseWhere(Leaves&& leaves) KV_REQUIRES(mutex_) {
    TierErased erased;
    std::vector<Key> keys;  // all are chosen before the first one leaves
    for (const auto& [key, record] : records_) {
      if (leaves(record)) keys.push_back(key);
    }
    for (const Key& key : keys) {
      const auto one = records_.find(key);
      if (one->second.is_stored) {
        ++erased.blocks;
        erased.bytes += options_.payload_bytes;
        ++stats_.evicted_erase;
      }
      for (Buffer& buffer : buffers_) {
        if (buffer.use != Use::kFree && buffer.name == one->second.name) EraseIn(buffer);
      }
      records_.erase(one);
    }
    return erased;
  }
  static void EraseIn(Buffer& buffer) {
    buffer.is_erased = true;
    if (buffer.use == Use::kArrived) buffer.use = Use::kFailed;
  }
  void EndReadsOf(const Digest& owner) KV_REQUIRES(mutex_) {
    for (Buffer& buffer : buffers_) {
      const auto found = records_.find(KeyOf(buffer.name));
      const bool is_read = buffer.use == Use::kReading || buffer.use == Use::kArrived;
      if (is_read && found != records_.end() && found->second.owner == owner) EraseIn(buffer);
    }
  }
  // Looks up the chain, until it is clear. The twin of DiskTier's, which is built otherwise.
  bool IsForgotten(const Record& record, const ForgetFacts& facts,
                   std::span<const BlockKey> kept) const KV_REQUIRES(mutex_) {
    const auto has = [&](const BlockKey& key) {
      return std::ranges::find(kept, key) != kept.end();
    };
    if (record.owner != facts.owner || has(record.name.key)) return false;
    if (!facts.has_chains) return true;
    for (const Record* at = &record;;) {
      const bool is_below = at->parent == facts.parent && at->after.has_value() != facts.is_first;
      if (is_below && std::equal(facts.tokens.begin(), facts.tokens.end(), at->tokens.begin())) {
        return true;
      }
      if (!at->after) return false;
      const auto before = records_.find(KeyOf(*at->after));
      if (before == records_.end()) return true;
      at = &before->second;
    }
  }
  bool IsForgetting(const Digest& owner) const KV_REQUIRES(mutex_) {
    return std::ranges::find(forgetting_, owner) != forgetting_.end();
  }

  void Loop() {
    for (;;) {
      Work work;
      std::chrono::nanoseconds takes{0};
      {
        MutexLock lock(mutex_);
        while (queue_.empty() && !is_stopping_) lock.Wait(wake_);
        if (queue_.empty()) return;
        work = std::move(queue_.front());
        queue_.pop_front();
        // A read that is no longer wanted takes no time.
        if (work.buffer && buffers_[*work.buffer].use == Use::kReading) {
          if (buffers_[*work.buffer].refs == 0) {
            buffers_[*work.buffer] = {};
            continue;
          }
          takes = TimeOfRead();
        }
      }
      if (takes.count() > 0 && !Pass(takes)) return;
      if (work.buffer) {
        MutexLock lock(mutex_);
        Finish(buffers_[*work.buffer]);
      }
      const std::function<void()>* progress;
      uint64_t stored;
      {
        MutexLock lock(mutex_);
        progress = &on_progress_;
        stored = num_stored_ - work.stored_before;
      }
      if (work.buffer && *progress) (*progress)();
      if (work.flush) {
        work.flush(TierFlushed{.blocks = stored, .bytes = stored * options_.payload_bytes});
      }
      if (work.forgets) {
        MutexLock lock(mutex_);
        forgetting_.erase(std::ranges::find(forgetting_, *work.forgets));
      }
      if (work.erase) work.erase(work.erased);
    }
  }
  std::chrono::nanoseconds TimeOfRead() KV_REQUIRES(mutex_) {
    std::chrono::nanoseconds takes = options_.read_latency;
    if (options_.bytes_per_s > 0) {
      takes +=
          std::chrono::nanoseconds(options_.payload_bytes * 1'000'000'000 / options_.bytes_per_s);
    }
    if (num_reads_ == options_.stalls_at) takes += options_.stall;
    return takes;
  }
  // False: the tier ends.
  bool Pass(std::chrono::nanoseconds time) {
    const uint64_t end_ns = MonotonicNs() + static_cast<uint64_t>(time.count());
    MutexLock lock(mutex_);
    for (uint64_t now_ns = MonotonicNs(); now_ns < end_ns; now_ns = MonotonicNs()) {
      if (is_stopping_) return false;
      const uint64_t left_ms = (end_ns - now_ns) / 1'000'000;
      lock.WaitFor(wake_, std::chrono::milliseconds(std::max<uint64_t>(left_ms, 1)));
    }
    return true;
  }
  void Finish(Buffer& buffer) KV_REQUIRES(mutex_) {
    const auto found = records_.find(KeyOf(buffer.name));
    if (buffer.use == Use::kQueued) {
      if (!buffer.is_erased && found != records_.end()) {
        found->second.payload = std::move(buffer.payload);
        found->second.is_stored = true;
        ++num_stored_;
        stats_.written_bytes += options_.payload_bytes;
        Evict();
      }
      buffer = {};
      return;
    }
    const uint64_t number = num_reads_++;
    const bool fails = options_.fails_at && number >= *options_.fails_at &&
                       number < *options_.fails_at + options_.num_fail;
    if (fails) {
      ++stats_.fault_read;
      if (found != records_.end()) records_.erase(found);
    }
    if (!fails && found != records_.end() && !buffer.is_erased) {
      buffer.record = found->second;
      stats_.read_bytes += options_.payload_bytes;
    }
    buffer.is_damaged = number == options_.damaged_at;
    const bool has_come = !fails && !buffer.is_erased && !buffer.record.payload.empty();
    buffer.use = has_come ? Use::kArrived : Use::kFailed;
    if (buffer.refs == 0) buffer = {};
  }
  void Evict() KV_REQUIRES(mutex_) {
    while (records_.size() > options_.max_records) {
      auto coldest = records_.end();
      for (auto one = records_.begin(); one != records_.end(); ++one) {
        const bool is_needed = std::ranges::any_of(records_, [&](const auto& other) {
          return other.second.after && KeyOf(*other.second.after) == one->first;
        });
        if (is_needed || !one->second.is_stored) continue;
        if (coldest == records_.end() || one->second.used < coldest->second.used) coldest = one;
      }
      if (coldest == records_.end()) return;
      records_.erase(coldest);
      ++stats_.evicted_cap;
    }
  }

  const MemoryTierOptions options_;
  mutable Mutex mutex_;
  std::condition_variable wake_;
  std::map<Key, Record> records_ KV_GUARDED_BY(mutex_);
  std::vector<Buffer> buffers_ KV_GUARDED_BY(mutex_);
  std::deque<Work> queue_ KV_GUARDED_BY(mutex_);
  std::vector<Digest> forgetting_ KV_GUARDED_BY(mutex_);
  uint64_t clock_ KV_GUARDED_BY(mutex_) = 0;
  uint64_t num_reads_ KV_GUARDED_BY(mutex_) = 0;
  uint64_t num_stored_ KV_GUARDED_BY(mutex_) = 0;
  bool is_stopping_ KV_GUARDED_BY(mutex_) = false;
  TierStats stats_ KV_GUARDED_BY(mutex_);
  std::function<void()> on_progress_ KV_GUARDED_BY(mutex_);
  std::thread thread_;  // last: it uses all others
};

}  // namespace kvasir
