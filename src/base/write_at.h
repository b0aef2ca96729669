// Writes all bytes to a file, or returns an error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvasir {

// Writes `bytes` at `offset` of a file. Continues after a short write or a signal: a disk that
// fills up writes some bytes first and fails only at the next call. False: errno has the reason,
// and some of the bytes may be written.
bool WriteAllAt(int fd, std::span<const std::byte> bytes, uint64_t offset);

}  // namespace kvasir
