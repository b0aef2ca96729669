// ByteSource: draws numbers from a fuzzer's input: its bytes in order, then zeros.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>

namespace kvasir {

class ByteSource {
 public:
  ByteSource(const uint8_t* data, size_t size) : bytes_(data, size) {}

  bool empty() const { return bytes_.empty(); }
  uint8_t Byte() {
    if (bytes_.empty()) return 0;
    const uint8_t byte = bytes_.front();
    bytes_ = bytes_.subspan(1);
    return byte;
  }
  uint32_t U32() {
    uint32_t value = 0;
    for (int i = 0; i < 4; ++i) value |= static_cast<uint32_t>(Byte()) << (8 * i);
    return value;
  }
  // Uses one byte if that is enough, so that a flipped bit changes one decision. REQUIRES: n > 0.
  uint32_t Below(uint32_t n) { return (n <= 256 ? Byte() : U32()) % n; }
  uint32_t Between(uint32_t first, uint32_t last) { return first + Below(last - first + 1); }
  std::span<const uint8_t> Rest() {
    const auto rest = bytes_;
    bytes_ = {};
    return rest;
  }

 private:
  std::span<const uint8_t> bytes_;
};

}  // namespace kvasir
