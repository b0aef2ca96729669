// MemoryMeter: counts the allocations of one thread and refuses those beyond a quota.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

#include "base/byte_budget.h"

namespace kvasir {

// What meters share, and what their memory keeps of it.
using MemoryQuota = ByteBudget;
using QuotaShare = ByteShare;

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
  // Tells whether this work needs more than the whole quota, even if no other work uses it.
  bool never_fits() const { return never_fits_; }
  // Ends the counting. The share keeps the bytes that are still allocated taken from the quota.
  QuotaShare Stop();

  // Returns whether `bytes` more are allowed. Operator new and delete call it.
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

// Serves another operator new and delete that replaces this library's (src/cli has one): count
// memory from malloc, and memory that will be freed. CountAllocated throws QuotaSpent, having freed
// `memory`.
void CountAllocated(void* memory);
void CountFreed(void* memory) noexcept;

}  // namespace kvasir
