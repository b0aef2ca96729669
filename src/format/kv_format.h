// KvFormat: how K and V numbers are stored in a block.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace kvasir {

// Stored in identities and on disk. Never renumber.
enum class KvFormat : uint8_t { kF32 = 1, kF16 = 2, kBf16 = 3 };

struct KvFormatTraits {
  std::string_view name;
  uint32_t bits;         // per number, scales not counted
  uint32_t unit_tokens;  // tokens packed at once (DESIGN: the unit rule); divides block_tokens
};

const KvFormatTraits& TraitsOf(KvFormat format);
std::optional<KvFormat> ParseKvFormat(std::string_view name);

// Bytes of `count` numbers, count a multiple of 16.
inline uint64_t KvBytes(KvFormat format, uint64_t count) {
  return count * TraitsOf(format).bits / 8;
}

}  // namespace kvasir
