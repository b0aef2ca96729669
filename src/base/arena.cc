#include "base/arena.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/cpu_topology.h"
#include "base/result.h"

namespace kvasir {

Result<Arena> Arena::Create(uint64_t size) {
  Arena arena;
  if (size == 0) return arena;
  void* base = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) {
    return Fail(
        Code::kExhausted,
        "memory: the system refuses {} bytes: {}; free some, or raise the limit (ulimit -v)", size,
        std::strerror(errno));
  }
  // All threads read weights, KV and scratch. If the system refuses to interleave, it goes without.
  static const std::vector<MemoryNode> nodes = ReadCpuTopology().nodes;
  InterleavePages(base, size, nodes);
  madvise(base, size, MADV_HUGEPAGE);  // only advice: without huge pages reads are slower
  arena.base_ = static_cast<std::byte*>(base);
  arena.size_ = size;
  return arena;
}

Arena Arena::Over(const std::byte* base, uint64_t size) {
  Arena arena;
  arena.base_ = const_cast<std::byte*>(base);
  arena.size_ = size;
  arena.owned_ = false;
  return arena;
}

Arena::Arena(Arena&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      used_(std::exchange(other.used_, 0)),
      owned_(other.owned_) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(size_, other.size_);
  std::swap(used_, other.used_);
  std::swap(owned_, other.owned_);
  return *this;
}

Arena::~Arena() {
  if (base_ != nullptr && owned_) munmap(base_, size_);
}

void Arena::Zero() {
  KV_CHECK(owned_);
  if (base_ == nullptr) return;
  // The system gives zeroed pages for these. It refuses where memory is locked (mlockall).
  if (madvise(base_, size_, MADV_DONTNEED) != 0) std::memset(base_, 0, size_);
}

std::byte* Arena::Take(uint64_t bytes) {
  const uint64_t offset = used_;
  const std::optional<uint64_t> padded = CheckedAdd(bytes, 63);
  used_ = padded ? CheckedAdd(used_, *padded / 64 * 64).value_or(UINT64_MAX) : UINT64_MAX;
  if (base_ == nullptr) return nullptr;
  KV_CHECK(used_ <= size_);
  return base_ + offset;
}

}  // namespace kvasir
