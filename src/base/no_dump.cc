#include "base/no_dump.h"

#include <sys/mman.h>

namespace kvasir {

void KeepOutOfDumps(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  madvise(const_cast<std::byte*>(bytes.data()), bytes.size(), MADV_DONTDUMP);
}

}  // namespace kvasir
