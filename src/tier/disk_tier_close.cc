// DiskTier: its threads, and how it ends, also on a disk that does not answer.
#include <chrono>
#include <list>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/result.h"
#include "base/start_thread.h"
#include "base/until_done.h"
#include "tier/disk_tier.h"

namespace kvasir {

Result<std::thread> DiskTier::StartThreadOf(void (DiskTier::*loop)()) {
  {
    MutexLock lock(store_.mutex);
    ++threads_running_;
  }
  Result<std::thread> thread = StartThread("disk tier", [this, loop] {
    (this->*loop)();
    EndThread();
  });
  if (thread) return thread;
  MutexLock lock(store_.mutex);
  --threads_running_;
  return thread;
}

void DiskTier::ReaderLoop() {
  for (;;) {
    while (ReaderStep()) {
    }
    MutexLock lock(store_.mutex);
    if (store_.is_stopping) return;
    if (!store_.queues.reads.empty() || scan_next_ < scan_end_) continue;
    lock.WaitFor(store_.reader_wake, std::chrono::milliseconds(1000));
  }
}

bool DiskTier::ReaderStep() {
  if (HelpToScan()) return true;
  if (!reader_.Step()) return false;
  progress_.Call();
  return true;
}

bool DiskTier::HelpToScan() {
  {
    MutexLock lock(store_.mutex);
    const bool helps = store_.options.threads > 0 && !store_.is_stopping && scan_next_ < scan_end_;
    if (!helps) return false;
    ++scan_helpers_;
  }
  ScanSegments(1);
  MutexLock lock(store_.mutex);
  --scan_helpers_;
  scan_done_.notify_all();
  return true;
}

// The last thing that a thread does.
void DiskTier::EndThread() {
  bool destroys;
  {
    MutexLock lock(store_.mutex);
    --threads_running_;
    destroys = is_left_ && threads_running_ == 0;
    thread_ended_.notify_all();
  }
  if (destroys) delete this;
}

void DiskTier::Stop() {
  {
    MutexLock lock(store_.mutex);
    store_.is_stopping = true;
  }
  Wake();
}

// What the writer does last. Of a tier that was left nothing is written any more.
void DiskTier::LeaveClosed() {
  has_left_ = true;
  bool is_left;
  {
    MutexLock lock(store_.mutex);
    is_left = is_left_;
  }
  if (store_.writing_files != nullptr && !is_left) {
    WriteHours();
    WriteAbout();
  }
  LeaveStore(State::kBroken, "the tier is closed");
  for (int tries = 0; tries < 100; ++tries) {
    {
      MutexLock lock(store_.mutex);
      if (flushes_.empty()) return;
    }
    // A callback had no memory: it gets some more chances.
    if (!AnswerFlushes()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

DiskTier::~DiskTier() {
  Stop();
  if (writer_thread_.joinable()) writer_thread_.join();
  if (reader_thread_.joinable()) reader_thread_.join();
  if (!has_left_) UntilDone([&] { LeaveClosed(); });
  RefuseErases();
}

// Those that no thread does any more.
void DiskTier::RefuseErases() {
  std::list<EraseJob> erases;
  {
    MutexLock lock(store_.mutex);
    erases.swap(erases_);
  }
  for (EraseJob& job : erases) (void)ReportErase(job);
}

// Whether they ended within `patience`.
bool DiskTier::WaitForThreads(std::chrono::milliseconds patience) {
  // Real time, whatever the storage's is.
  const uint64_t end_ns = MonotonicNs() + static_cast<uint64_t>(patience.count()) * 1'000'000;
  MutexLock lock(store_.mutex);
  while (threads_running_ > 0) {
    const uint64_t now_ns = MonotonicNs();
    if (now_ns >= end_ns) return false;
    lock.WaitFor(thread_ended_, std::chrono::milliseconds((end_ns - now_ns) / 1'000'000 + 1));
  }
  return true;
}

bool DiskTier::Close(std::unique_ptr<DiskTier> tier, std::unique_ptr<Storage> storage,
                     std::chrono::milliseconds patience) {
  KV_CHECK(&tier->store_.storage == storage.get());
  tier->Stop();
  if (tier->WaitForThreads(patience)) {
    tier.reset();
    return true;
  }
  Log(LogLevel::kWarning, "disk tier: its folder does not answer and is left as it is",
      LogField("folder", tier->store_.options.folder));
  tier->owned_storage_ = std::move(storage);
  tier->progress_.Stop();
  std::list<FlushJob> flushes;
  std::list<EraseJob> erases;
  bool is_left;
  {
    MutexLock lock(tier->store_.mutex);
    flushes.swap(tier->flushes_);
    erases.swap(tier->erases_);
    is_left = tier->is_left_ = tier->threads_running_ > 0;
    if (is_left) {
      if (tier->writer_thread_.joinable()) tier->writer_thread_.detach();
      if (tier->reader_thread_.joinable()) tier->reader_thread_.detach();
      (void)tier.release();  // to the threads
    }
  }
  for (FlushJob& job : flushes) {
    if (!job.answer) job.answer = Fail(Code::kUnavailable, "disk tier: it was closed");
    (void)ReportFlush(job);
  }
  for (EraseJob& job : erases) (void)ReportErase(job);
  return !is_left;
}

}  // namespace kvasir
