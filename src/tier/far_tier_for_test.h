// FarTier: a tier in memory that knows of a record only after it was asked, as a fleet's store.
#pragma once

#include <chrono>
#include <functional>
#include <set>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "tier/memory_tier_for_test.h"

namespace kvasir {

struct FarTierOptions {
  MemoryTierOptions memory;
  std::chrono::milliseconds answers_after{0};  // of a lookup; 0: at once
  std::chrono::milliseconds usually_after{1};  // what it says of that
};

// Its lookups take real time, each on a separate thread.
class FarTier : public MemoryTier {
 public:
  explicit FarTier(const FarTierOptions& options) : MemoryTier(options.memory), options_(options) {}
  ~FarTier() override {
    for (std::thread& thread : looks_) thread.join();
  }

  bool Has(const RecordName& name) const override {
    MutexLock lock(seen_mutex_);
    return seen_.contains(KeyOf(name)) && MemoryTier::Has(name);
  }
  TierKind KindOf(const RecordName&) const override { return TierKind::kRemote; }
  TierKind KindOfStore(uint32_t) const override { return TierKind::kRemote; }
  double LoadBytesPerS(TierKind) const override { return 1e9; }
  uint64_t LookNs() const override {
    return static_cast<uint64_t>(std::chrono::nanoseconds(options_.usually_after).count());
  }
  bool Look(LookFor what, std::function<void()> done) override {
    ++num_looks_;
    const auto answer = [this, what = std::move(what), done = std::move(done)] {
      std::this_thread::sleep_for(options_.answers_after);
      {
        MutexLock lock(seen_mutex_);
        for (const RecordName& name : what.names) seen_.insert(KeyOf(name));
      }
      done();
    };
    if (options_.answers_after.count() == 0) {
      answer();
    } else {
      looks_.emplace_back(answer);
    }
    return true;
  }
  uint32_t num_looks() const { return num_looks_; }

 private:
  using SeenKey = std::tuple<BlockKey, uint16_t, uint16_t>;
  static SeenKey KeyOf(const RecordName& name) { return {name.key, name.layer_group, name.part}; }

  const FarTierOptions options_;
  mutable Mutex seen_mutex_;
  std::set<SeenKey> seen_ KV_GUARDED_BY(seen_mutex_);
  std::vector<std::thread> looks_;
  uint32_t num_looks_ = 0;
};

}  // namespace kvasir
