#include "base/mapping_faults.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>

namespace kvasir {
namespace {

// More than the shards of any known model. 24 bytes each.
constexpr uint32_t kMaxMappings = 4096;

// begin 0: a free row. A row belongs to the thread that set `taken`. Its `end` is written before
// its `begin` (release), and does not change until `begin` is 0 again: a handler that reads the
// same begin before and after the end has read one mapping.
struct Row {
  std::atomic<bool> taken;
  std::atomic<uint32_t> faults;
  std::atomic<uintptr_t> begin, end;
};

// Zero from the start, without a constructor: a handler may run at any time.
constinit std::array<Row, kMaxMappings> rows{};
constinit std::atomic<uint32_t> num_rows{0};  // rows from here on were never used
constinit std::atomic<uintptr_t> page_bytes{0};
static_assert(std::atomic<uintptr_t>::is_always_lock_free);

struct sigaction previous;  // written before the handler is installed

Row* RowOf(uintptr_t address) {
  const uint32_t num = num_rows.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < num; ++i) {
    Row& row = rows[i];
    const uintptr_t begin = row.begin.load(std::memory_order_acquire);
    const uintptr_t end = row.end.load(std::memory_order_acquire);
    const bool same = row.begin.load(std::memory_order_acquire) == begin;
    if (begin != 0 && same && address >= begin && address < end) return &row;
  }
  return nullptr;
}

bool PutZeros(uintptr_t address) {
  const uintptr_t bytes = page_bytes.load(std::memory_order_relaxed);
  const int error = errno;
  // Uses the system call directly, because sanitizers replace mmap().
  const bool done = syscall(SYS_mmap, address / bytes * bytes, bytes, PROT_READ,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != -1;
  errno = error;
  return done;
}

// Handles the signal. Async-signal-safe: atomics and one system call.
void OnFault(int number, siginfo_t* info, void* context) {
  const bool by_read =
      info->si_code != SI_USER && info->si_code != SI_TKILL && info->si_code != SI_QUEUE;
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  if (Row* row = by_read ? RowOf(address) : nullptr; row != nullptr && PutZeros(address)) {
    row->faults.fetch_add(1, std::memory_order_release);
    return;
  }
  if ((previous.sa_flags & SA_SIGINFO) != 0) return previous.sa_sigaction(number, info, context);
  if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
    return previous.sa_handler(number);
  }
  if (!by_read && previous.sa_handler == SIG_IGN) return;
  // The default ends the process when the read is repeated or the signal comes again.
  std::signal(number, SIG_DFL);
  if (!by_read) raise(number);
}

}  // namespace

void CatchMappingFaults() {
  static const bool installed = [] {
    page_bytes.store(static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)), std::memory_order_relaxed);
    struct sigaction action = {};
    action.sa_sigaction = OnFault;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    sigaction(SIGBUS, nullptr, &previous);
    return sigaction(SIGBUS, &action, nullptr) == 0;
  }();
  static_cast<void>(installed);
}

std::optional<MappingId> AddMapping(std::span<const std::byte> bytes) {
  for (uint32_t i = 0; i < kMaxMappings; ++i) {
    Row& row = rows[i];
    if (row.taken.load(std::memory_order_relaxed) ||
        row.taken.exchange(true, std::memory_order_acquire)) {
      continue;
    }
    row.faults.store(0, std::memory_order_relaxed);
    const auto begin = reinterpret_cast<uintptr_t>(bytes.data());
    row.end.store(begin + bytes.size(), std::memory_order_release);
    row.begin.store(begin, std::memory_order_release);
    uint32_t num = num_rows.load(std::memory_order_relaxed);
    while (num <= i && !num_rows.compare_exchange_weak(num, i + 1, std::memory_order_release)) {
    }
    return MappingId{i};
  }
  return std::nullopt;
}

void RemoveMapping(MappingId id) {
  Row& row = rows[static_cast<uint32_t>(id)];
  row.begin.store(0, std::memory_order_release);
  row.taken.store(false, std::memory_order_release);
}

uint32_t MappingFaults(MappingId id) {
  return rows[static_cast<uint32_t>(id)].faults.load(std::memory_order_acquire);
}

}  // namespace kvasir
