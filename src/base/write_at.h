// Writing to files: all of it, or an error that says why not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvasir {

// Writes `bytes` from `offset` of a file on, and goes on where a call writes fewer or a signal
// comes: a disk that fills up writes some first, and says why with the next call only. False: errno
// says why, and some of them may be written.
bool WriteAllAt(int fd, std::span<const std::byte> bytes, uint64_t offset);

}  // namespace kvasir
