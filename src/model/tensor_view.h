// TensorView: a tensor's bytes where they lie in a mapped file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kvasir {

enum class DType : uint8_t { kF32 = 1, kF16 = 2, kBf16 = 3 };

inline uint32_t BytesOf(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

struct TensorView {
  std::string name;  // in its file, for messages
  DType dtype = DType::kF32;
  std::vector<uint64_t> shape;      // row-major, outermost first: a weight is [out, in]
  const std::byte* data = nullptr;  // little endian; may be unaligned
  uint64_t num_elements() const {
    uint64_t n = 1;
    for (uint64_t d : shape) n *= d;
    return n;
  }
  uint64_t num_bytes() const { return num_elements() * BytesOf(dtype); }
};

}  // namespace kvasir
