// BlockingStorage: the machine's files, of which one kind of call does not return for a while.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>

#include "base/mutex.h"
#include "tier/storage.h"

namespace kvasir {

enum class Blocked : uint8_t { kNothing, kWrite, kRead, kSync };

// Thread-safe.
class BlockingStorage : public RealStorage {
 public:
  // What a test keeps of a storage that it gave away: both may go first.
  struct Gate {
    Mutex mutex;
    std::condition_variable changed;
    Blocked blocked KV_GUARDED_BY(mutex) = Blocked::kNothing;
    uint32_t num_waiting KV_GUARDED_BY(mutex) = 0;
    bool has_ended KV_GUARDED_BY(mutex) = false;
    std::atomic<uint64_t> skipped_ns = 0;  // relaxed: a time by itself
    std::atomic<uint64_t> read_ns = 0;     // that each read takes

    void PassTime(uint64_t seconds) { skipped_ns.fetch_add(seconds * 1'000'000'000); }

    void Block(Blocked what) {
      MutexLock lock(mutex);
      blocked = what;
      changed.notify_all();
    }
    void WaitForCall() {
      MutexLock lock(mutex);
      while (num_waiting == 0) lock.Wait(changed);
    }
    void WaitForEnd() {
      MutexLock lock(mutex);
      while (!has_ended) lock.Wait(changed);
    }
    void Pass(Blocked what) {
      MutexLock lock(mutex);
      if (blocked != what) return;
      ++num_waiting;
      changed.notify_all();
      while (blocked == what) lock.Wait(changed);
      --num_waiting;
    }
  };

  explicit BlockingStorage(std::shared_ptr<Gate> gate) : gate_(std::move(gate)) {}
  ~BlockingStorage() override {
    MutexLock lock(gate_->mutex);
    gate_->has_ended = true;
    gate_->changed.notify_all();
  }

  IoResult<uint64_t> ReadSome(FileId file, std::span<const std::span<std::byte>> pieces,
                              uint64_t offset) override {
    gate_->Pass(Blocked::kRead);
    gate_->skipped_ns.fetch_add(gate_->read_ns.load(std::memory_order_relaxed));
    return RealStorage::ReadSome(file, pieces, offset);
  }
  IoResult<uint64_t> WriteSome(FileId file, std::span<const std::byte> bytes,
                               uint64_t offset) override {
    gate_->Pass(Blocked::kWrite);
    return RealStorage::WriteSome(file, bytes, offset);
  }
  uint64_t MonotonicNs() override {
    return RealStorage::MonotonicNs() + gate_->skipped_ns.load(std::memory_order_relaxed);
  }
  IoStatus SyncData(FileId file) override {
    gate_->Pass(Blocked::kSync);
    return RealStorage::SyncData(file);
  }

 private:
  const std::shared_ptr<Gate> gate_;
};

}  // namespace kvasir
