// operator new of the kvasir binary: gives small pieces even when the system refuses memory, and
// operator delete: zeroes what it frees.
//
// It is not known when memory is freed whether what it holds will be erased later, so all of it is
// zeroed then: afterwards only what is in use has to be searched. C libraries allocate without
// these operators; they get nothing that an erase names (SQLite's rows are encrypted before).
//
// Some library code cannot stop halfway: Asio loses a connection's queue, and nlohmann::json, which
// allocates in its destructor, ends the process when an allocation fails there. So when the system
// refuses memory, pieces of up to 4 KiB, and one of up to 4 MiB (enough to destroy one large JSON
// object), come from a fixed reserve and return to it when they are deleted. While an exception is
// thrown, destructors have a second reserve, which other code cannot use up. All other allocations
// throw std::bad_alloc as usual. The pages of a reserve take no memory until they are used.
// Thread-safe. Memory from malloc is counted as in the library (base/memory_meter.h).
#include <malloc.h>
#include <string.h>
#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <new>

#include "base/memory_meter.h"

#ifndef KVASIR_SANITIZED  // a sanitizer has its own operator new
namespace {

// Reserve of `kBase` pieces of kBytes each.
template <std::byte* kBase, std::size_t kBytes, std::size_t kPieces>
class Pieces {
 public:
  // Returns nullptr when all pieces are in use, or `size` is larger than a piece.
  void* Take(std::size_t size) {
    for (std::size_t i = 0; i < kPieces && size <= kBytes; ++i) {
      if (!taken_[i].exchange(true, std::memory_order_acquire)) return kBase + i * kBytes;
    }
    return nullptr;
  }
  // Returns false when `memory` is not from this reserve.
  bool GiveBack(void* memory) {
    const auto offset =
        reinterpret_cast<std::uintptr_t>(memory) - reinterpret_cast<std::uintptr_t>(kBase);
    if (offset >= kPieces * kBytes) return false;
    explicit_bzero(memory, kBytes);
    taken_[offset / kBytes].store(false, std::memory_order_release);
    return true;
  }

 private:
  // Acquire when a piece is taken, release when it is returned: its next owner sees the writes of
  // the last one.
  std::atomic<bool> taken_[kPieces] = {};
};

constexpr std::size_t kSmallBytes = 4096, kLargeBytes = std::size_t{4} << 20;
constexpr std::size_t kSmall = 1024, kUnwindingSmall = 256, kLarge = 1, kUnwindingLarge = 2;
constexpr std::size_t kAlignment = __STDCPP_DEFAULT_NEW_ALIGNMENT__;
alignas(kAlignment) std::byte small_bytes[kSmall * kSmallBytes];
alignas(kAlignment) std::byte large_bytes[kLarge * kLargeBytes];
alignas(kAlignment) std::byte unwinding_small_bytes[kUnwindingSmall * kSmallBytes];
alignas(kAlignment) std::byte unwinding_large_bytes[kUnwindingLarge * kLargeBytes];
constinit Pieces<small_bytes, kSmallBytes, kSmall> small;
constinit Pieces<large_bytes, kLargeBytes, kLarge> large;
constinit Pieces<unwinding_small_bytes, kSmallBytes, kUnwindingSmall> unwinding_small;
constinit Pieces<unwinding_large_bytes, kLargeBytes, kUnwindingLarge> unwinding_large;

void* FromReserve(std::size_t size) {
  void* memory = small.Take(size);
  if (memory == nullptr) memory = large.Take(size);
  if (memory != nullptr || std::uncaught_exceptions() == 0) return memory;
  memory = unwinding_small.Take(size);
  return memory != nullptr ? memory : unwinding_large.Take(size);
}

// Clears memory. Returns whole pages of a large block to the system, which gives zeros for those
// that are used again: many were never touched, and writing to them would take memory and a page
// fault each.
void Zero(void* memory, std::size_t bytes) {
  constexpr std::size_t kGivenBack = std::size_t{1} << 20, kPage = 4096;
  auto* const begin = static_cast<std::byte*>(memory);
  if (bytes < kGivenBack) return explicit_bzero(begin, bytes);
  const auto address = reinterpret_cast<std::uintptr_t>(begin);
  const std::size_t before = (kPage - address % kPage) % kPage;
  const std::size_t pages = (bytes - before) / kPage * kPage;
  if (madvise(begin + before, pages, MADV_DONTNEED) != 0) return explicit_bzero(begin, bytes);
  explicit_bzero(begin, before);
  explicit_bzero(begin + before + pages, bytes - before - pages);
}

}  // namespace

void* operator new(std::size_t size) {
  if (void* memory = std::malloc(size > 0 ? size : 1)) {
    kvasir::CountAllocated(memory);
    return memory;
  }
  if (void* memory = FromReserve(size)) return memory;
  throw std::bad_alloc();
}

// Frees memory of the heap or the reserve. The forms for arrays and with sizes call the two
// without; those for arrays are the library's.
void operator delete(void* memory) noexcept {
  if (memory == nullptr) return;
  const bool is_ours = small.GiveBack(memory) || large.GiveBack(memory) ||
                       unwinding_small.GiveBack(memory) || unwinding_large.GiveBack(memory);
  if (is_ours) return;
  kvasir::CountFreed(memory);
  Zero(memory, malloc_usable_size(memory));
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept { operator delete(memory); }

// Frees memory of the heap: the library's operator new for these takes it from the same one.
void operator delete(void* memory, std::align_val_t) noexcept {
  if (memory == nullptr) return;
  Zero(memory, malloc_usable_size(memory));
  std::free(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t alignment) noexcept {
  operator delete(memory, alignment);
}
#endif
