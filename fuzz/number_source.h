// Numbers for kernel fuzzers: of kinds that the input chooses, or taken directly from the input.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <span>

#include "base/check.h"
#include "base/random.h"
#include "byte_source.h"
#include "simd/half.h"

namespace kvasir {

class NumberSource {
 public:
  explicit NumberSource(ByteSource& bytes)
      : bytes_(bytes), kind_(static_cast<Kind>(bytes.Below(kKinds))), random_(bytes.U32()) {}

  float Next() {
    switch (kind_) {
      case kOrdinary:
        return Ordinary();
      case kWide:
        return Wide();
      case kEdges:
        return random_.Below(2) == 0 ? Edge() : Ordinary();
      case kTiny:
        return std::ldexp(Ordinary(), -90 - static_cast<int>(random_.Below(60)));
      case kHuge:
        return std::ldexp(Ordinary(), 60 + static_cast<int>(random_.Below(68)));
      case kRare:
        return random_.Below(32) == 0 ? Edge() : 0.0f;
      case kAnyBits:
        return FloatOf(static_cast<uint32_t>(random_.Bits()));
      default:  // kGiven, until the input ends
        return bytes_.empty() ? Wide() : FloatOf(bytes_.U32());
    }
  }
  // Returns a number that is never infinite, never NaN.
  float NextFinite() {
    const float x = Next();
    return std::isfinite(x) ? x : std::copysign(FLT_MAX, x);
  }
  Random& random() { return random_; }

 private:
  enum Kind { kOrdinary, kWide, kEdges, kTiny, kHuge, kRare, kAnyBits, kGiven, kKinds };

  float Ordinary() { return static_cast<float>(random_.Uniform() * 2 - 1); }
  // Returns numbers of wide exponents, so that another order of a sum gives other bits.
  float Wide() { return std::ldexp(Ordinary(), static_cast<int>(random_.Below(25)) - 12); }
  // Draws zeros, subnormal numbers, the ends of the formats, and borders of exp and the quantisers.
  float Edge() {
    constexpr float kEdges[] = {0.0f,       -0.0f,
                                1e-45f,     -1e-45f,
                                1e-42f,     FLT_MIN,
                                -FLT_MIN,   0x1.fffffcp-127f,
                                0x1p-100f,  0x1.fffffep-101f,
                                0x1p-24f,   0x1p-14f,
                                0.5f,       1.0f,
                                -1.0f,      127.0f,
                                -128.0f,    127.5f,
                                65504.0f,   65520.0f,
                                -87.3f,     -87.5f,
                                88.722839f, 88.9f,
                                0x1p24f,    0x1p63f,
                                1.8e19f,    2e19f,
                                0x1p127f,   FLT_MAX,
                                -FLT_MAX};
    return kEdges[random_.Below(std::size(kEdges))];
  }

  ByteSource& bytes_;
  const Kind kind_;
  Random random_;
};

// Memory of exactly so many items, aligned to a cache line; a sanitizer finds reads and writes
// beyond it.
template <typename T>
class ExactBuffer {
 public:
  explicit ExactBuffer(size_t count) : count_(count) {
    void* memory = nullptr;
    KV_CHECK(posix_memalign(&memory, 64, count * sizeof(T)) == 0);
    data_.reset(static_cast<T*>(memory));
    std::memset(memory, 0xff, count * sizeof(T));  // unset floats are NaN
  }
  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  size_t size() const { return count_; }
  T& operator[](size_t i) { return data_.get()[i]; }
  const T& operator[](size_t i) const { return data_.get()[i]; }
  std::span<const T> span() const { return {data(), count_}; }

 private:
  struct Free {
    void operator()(T* p) const { std::free(p); }
  };
  size_t count_;
  std::unique_ptr<T, Free> data_;
};

// Tells whether they have equal bits, or NaN in both: no rule defines which NaN (docs/numerics.md,
// rule 7).
inline bool SameNumbers(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (BitsOf(a[i]) != BitsOf(b[i]) && !(std::isnan(a[i]) && std::isnan(b[i]))) return false;
  }
  return true;
}

}  // namespace kvasir
