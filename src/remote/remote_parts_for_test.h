// RemoteParts: a remote tier's store on a RedisFake, without the tier: a test is its other threads.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "base/mutex.h"
#include "remote/fleet_keys.h"
#include "remote/remote_on_fake_for_test.h"
#include "remote/remote_store.h"

namespace kvasir {

class RemoteParts : public testing::Test {
 protected:
  explicit RemoteParts(RemoteTierOptions options = SmallOptions()) {
    options.address = fake_.address();
    auto made = RemoteStore::Create(options);
    EXPECT_TRUE(made);
    store_ = std::move(*made);
    store_->progress.Set([this] { changed_.notify_all(); });
  }
  ~RemoteParts() override { Stop(); }

  // Runs a part's Loop on a thread, until Stop.
  void Run(std::function<void()> loop) { thread_ = std::thread(std::move(loop)); }
  void Stop() {
    {
      MutexLock lock(store_->mutex);
      store_->is_stopping.store(true, std::memory_order_relaxed);
    }
    store_->looker_wake.notify_all();
    store_->reader_wake.notify_all();
    if (thread_.joinable()) thread_.join();
  }
  // Has the store be on, with an owner whose epoch is known.
  OwnerId HaveOwner(uint32_t owner = 0) {
    MutexLock lock(store_->mutex);
    store_->state.now = RemoteStats::State::kOn;
    store_->state.addresses = *Resolve(store_->options.address);
    const OwnerId id = *store_->OwnerOf(TestRecord::Owner(owner));
    OwnerEpoch epoch{.epoch = 5};
    epoch.random = TestRecord::Filled(9);
    store_->SetEpoch(id, epoch);
    return id;
  }
  // Returns what the record is called in the store. REQUIRES: its owner's epoch is known.
  std::string NameOf(const TestRecord& record) {
    return NameOf(record.facts.owner, record.facts.name);
  }
  std::string NameOf(const Digest& owner, const RecordName& name) {
    MutexLock lock(store_->mutex);
    const OwnerId id = *store_->owner_keys.Find(owner);
    return RemoteName(store_->at(id).name, store_->owner_keys.key_of(id), name);
  }
  // Waits at most 20 s for a condition, which is asked with the mutex held.
  bool WaitUntil(const std::function<bool(RemoteStore&)>& is_done) {
    MutexLock lock(store_->mutex);
    for (int i = 0; i < 4000 && !is_done(*store_); ++i) {
      lock.WaitFor(changed_, std::chrono::milliseconds(5));
    }
    return is_done(*store_);
  }

  RedisFake fake_;
  std::condition_variable changed_;
  std::unique_ptr<RemoteStore> store_;
  std::thread thread_;
};

}  // namespace kvasir
