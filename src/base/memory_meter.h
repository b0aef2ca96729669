// MemoryMeter: counts the allocations of one thread and refuses those beyond a quota.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

namespace kvasir {

// A number of bytes that several meters share. Thread-safe.
class MemoryQuota {
 public:
  explicit MemoryQuota(uint64_t max_bytes) : max_bytes_(max_bytes) {}
  uint64_t max_bytes() const { return max_bytes_; }
  uint64_t taken_bytes() const { return taken_.load(std::memory_order_relaxed); }

  bool Take(uint64_t bytes);  // false: too few are left, and none were taken
  void Give(uint64_t bytes) { taken_.fetch_sub(bytes, std::memory_order_relaxed); }

 private:
  const uint64_t max_bytes_;
  std::atomic<uint64_t> taken_{0};  // relaxed: a sum that orders nothing
};

// Bytes of a quota; the destructor returns them. Thread-compatible.
class QuotaShare {
 public:
  QuotaShare() = default;
  QuotaShare(MemoryQuota& quota, uint64_t bytes) : quota_(&quota), bytes_(bytes) {}
  QuotaShare(QuotaShare&& other) noexcept
      : quota_(other.quota_), bytes_(std::exchange(other.bytes_, 0)) {}
  QuotaShare& operator=(QuotaShare&& other) noexcept {
    std::swap(quota_, other.quota_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~QuotaShare() {
    if (bytes_ > 0) quota_->Give(bytes_);
  }

 private:
  MemoryQuota* quota_ = nullptr;
  uint64_t bytes_ = 0;
};

// Thrown by operator new when a quota is used up.
class QuotaSpent : public std::bad_alloc {
 public:
  const char* what() const noexcept override { return "the memory quota is spent"; }
};

// While it exists, counts everything that this thread allocates with operator new (which this
// library replaces), in bytes of the heap, minus what it frees. Beyond the quota operator new
// throws QuotaSpent and opens a reserve, from which destructors may allocate during cleanup.
// Metered code must let the exception through. Costs a few nanoseconds per allocation, and one
// comparison without a meter. At most one at a time on a thread, used only on that thread.
class MemoryMeter {
 public:
  explicit MemoryMeter(MemoryQuota& quota);  // must outlive the meter and its share
  ~MemoryMeter();
  MemoryMeter(const MemoryMeter&) = delete;
  MemoryMeter& operator=(const MemoryMeter&) = delete;

  uint64_t peak_bytes() const { return static_cast<uint64_t>(peak_); }
  // Whether this work needs more than the whole quota, even if nobody else uses it.
  bool never_fits() const { return never_fits_; }
  // Ends the counting. The share keeps the bytes that are still allocated taken from the quota.
  QuotaShare Stop();

  // Called by operator new and delete. Whether `bytes` more are allowed.
  bool Add(size_t bytes);
  void Remove(size_t bytes);
  void OpenReserve() { in_reserve_ = true; }

 private:
  MemoryQuota& quota_;
  // May be negative when memory from before the meter is freed; counts as 0 then.
  int64_t used_ = 0, peak_ = 0;
  int64_t drawn_ = 0;  // taken from the quota
  bool in_reserve_ = false;
  bool never_fits_ = false;
};

// For another operator new and delete that replaces this library's (src/cli has one): count memory
// from malloc, and memory that will be freed. CountAllocated throws QuotaSpent, having freed
// `memory`.
void CountAllocated(void* memory);
void CountFreed(void* memory) noexcept;

}  // namespace kvasir
