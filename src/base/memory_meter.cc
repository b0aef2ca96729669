#include "base/memory_meter.h"

#include <malloc.h>

#include <algorithm>
#include <cstdlib>

#include "base/check.h"

namespace kvasir {
namespace {

constexpr int64_t kDrawBytes = 64 << 10;    // from the quota at a time
constexpr int64_t kReserveBytes = 1 << 20;  // for destructors, once the quota is used up
constexpr int64_t kHeapHeaderBytes = 8;     // of glibc, before each block

constinit thread_local MemoryMeter* t_meter = nullptr;

}  // namespace

MemoryMeter::MemoryMeter(MemoryQuota& quota) : quota_(quota) {
  KV_CHECK(t_meter == nullptr);
  t_meter = this;
}

MemoryMeter::~MemoryMeter() { Stop(); }

QuotaShare MemoryMeter::Stop() {
  if (t_meter == this) t_meter = nullptr;
  const int64_t stays = std::clamp<int64_t>(used_, 0, drawn_);
  quota_.Give(static_cast<uint64_t>(drawn_ - stays));
  drawn_ = used_ = 0;
  return QuotaShare(quota_, static_cast<uint64_t>(stays));
}

bool MemoryMeter::Add(size_t bytes) {
  const int64_t used = used_ + static_cast<int64_t>(bytes) + kHeapHeaderBytes;
  if (used > drawn_) {
    const int64_t missing = used - drawn_;
    const int64_t draw = std::max(missing, kDrawBytes);
    if (quota_.Take(static_cast<uint64_t>(draw))) {
      drawn_ += draw;
    } else if (quota_.Take(static_cast<uint64_t>(missing))) {
      drawn_ += missing;
    } else if (!in_reserve_ || missing > kReserveBytes) {
      never_fits_ |= used > static_cast<int64_t>(quota_.max_bytes());
      return false;
    }
  }
  used_ = used;
  peak_ = std::max(peak_, used);
  return true;
}

void MemoryMeter::Remove(size_t bytes) {
  used_ = std::max<int64_t>(used_ - static_cast<int64_t>(bytes) - kHeapHeaderBytes, 0);
  const int64_t surplus = drawn_ - used_;
  if (surplus < 16 * kDrawBytes) return;
  drawn_ -= surplus - kDrawBytes;
  quota_.Give(static_cast<uint64_t>(surplus - kDrawBytes));
}

namespace {

// Allocates memory for `bytes`, counted; null where the system or the quota refuses it.
void* Allocate(size_t bytes, bool* spent) noexcept {
  void* memory = std::malloc(std::max<size_t>(bytes, 1));
  MemoryMeter* meter = t_meter;
  if (meter == nullptr || memory == nullptr) [[likely]]
    return memory;
  if (meter->Add(malloc_usable_size(memory))) return memory;
  *spent = true;
  std::free(memory);
  return nullptr;
}

void Release(void* memory) noexcept {
  CountFreed(memory);
  std::free(memory);
}

}  // namespace

void CountAllocated(void* memory) {
  if (t_meter == nullptr || t_meter->Add(malloc_usable_size(memory))) [[likely]]
    return;
  std::free(memory);
  t_meter->OpenReserve();
  throw QuotaSpent();
}

void CountFreed(void* memory) noexcept {
  if (t_meter != nullptr && memory != nullptr) [[unlikely]] {
    t_meter->Remove(malloc_usable_size(memory));
  }
}

}  // namespace kvasir

// The array forms call these. Weak, because a test that counts allocations has its own; the library
// of clang's address sanitizer has weak ones too where it is linked statically, in fuzzers.
#if defined(__clang__) && !defined(KVASIR_SANITIZED)
#if __has_feature(address_sanitizer)
#define KV_REPLACES
#endif
#endif
#ifndef KV_REPLACES
#define KV_REPLACES [[gnu::weak]]
#endif

KV_REPLACES void* operator new(size_t bytes) {
  bool spent = false;
  while (true) {
    if (void* memory = kvasir::Allocate(bytes, &spent)) [[likely]]
      return memory;
    if (spent) {
      kvasir::t_meter->OpenReserve();
      throw kvasir::QuotaSpent();
    }
    const std::new_handler handler = std::get_new_handler();
    if (handler == nullptr) throw std::bad_alloc();
    handler();
  }
}

// Keeps the reserve closed: a caller with nothrow can continue without the memory.
KV_REPLACES void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  bool spent = false;
  return kvasir::Allocate(bytes, &spent);
}
KV_REPLACES void* operator new[](size_t bytes, const std::nothrow_t& tag) noexcept {
  return operator new(bytes, tag);
}

KV_REPLACES void operator delete(void* memory) noexcept { kvasir::Release(memory); }
KV_REPLACES void operator delete(void* memory, size_t) noexcept { kvasir::Release(memory); }
