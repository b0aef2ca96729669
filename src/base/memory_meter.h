// MemoryMeter: counts what the code on one thread allocates, and refuses what goes beyond a quota.
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

  bool Take(uint64_t bytes);  // false: so many are not left, and none were taken
  void Give(uint64_t bytes) { taken_.fetch_sub(bytes, std::memory_order_relaxed); }

 private:
  const uint64_t max_bytes_;
  std::atomic<uint64_t> taken_{0};  // a sum, nothing is ordered by it: relaxed
};

// Bytes of a quota, given back by the destructor. Thread-compatible.
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

// What operator new throws where a quota is spent.
class QuotaSpent : public std::bad_alloc {
 public:
  const char* what() const noexcept override { return "the memory quota is spent"; }
};

// From its construction to its end, everything that this thread allocates by operator new (which
// this library replaces) counts, by the bytes that the heap gives for it, and what it frees counts
// no longer. Beyond the quota operator new throws QuotaSpent; then a reserve is opened, from which
// destructors may allocate on the way out. Work that is metered must let the exception through.
// Costs some nanoseconds an allocation; one comparison where nothing is metered. One at a time on a
// thread, and used there alone.
class MemoryMeter {
 public:
  explicit MemoryMeter(MemoryQuota& quota);  // must outlive the meter and its share
  ~MemoryMeter();
  MemoryMeter(const MemoryMeter&) = delete;
  MemoryMeter& operator=(const MemoryMeter&) = delete;

  uint64_t peak_bytes() const { return static_cast<uint64_t>(peak_); }
  // Whether something was refused that is more than the whole quota, whoever else has a part of it.
  bool never_fits() const { return never_fits_; }
  // Ends the counting. What is still allocated stays taken from the quota as long as the share
  // lives.
  QuotaShare Stop();

  // Of operator new and delete. Allows `bytes` more, or not.
  bool Add(size_t bytes);
  void Remove(size_t bytes);
  void OpenReserve() { in_reserve_ = true; }

 private:
  MemoryQuota& quota_;
  // Memory that was allocated before may be freed meanwhile: it never lowers the count below 0.
  int64_t used_ = 0, peak_ = 0;
  int64_t drawn_ = 0;  // taken from the quota
  bool in_reserve_ = false;
  bool never_fits_ = false;
};

// For another operator new and delete in the place of this library's (src/cli has one): counts what
// malloc gave, and what free will take. CountAllocated throws QuotaSpent, having freed `memory`.
void CountAllocated(void* memory);
void CountFreed(void* memory) noexcept;

}  // namespace kvasir
