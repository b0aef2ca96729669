#include "format/pack.h"

#include <cstring>
#include <type_traits>

#include "format/codec.h"
#include "simd/half.h"

namespace kvasir {
namespace {

// The place of a number in its run: whole bytes from `byte` on, or the nibble at `shift`.
struct Place {
  size_t byte;
  uint32_t shift;
};

template <KvFormat F>
constexpr uint32_t kBytes = F == KvFormat::kF32                           ? 4
                            : F == KvFormat::kF16 || F == KvFormat::kBf16 ? 2
                            : F == KvFormat::kInt4 || F == KvFormat::kNf4 ? 0
                                                                          : 1;

template <KvFormat F>
Place KeyPlace(uint32_t lane, uint32_t i) {
  if constexpr (kBytes<F> == 0) {
    const uint32_t pair = i % 8 / 2;
    return {size_t{i / 8} * 64 + lane * 4 + i % 2 * 2 + pair / 2, pair % 2 * 4};
  }
  if constexpr (F == KvFormat::kInt8) return {(size_t{i / 2} * kRunTokens + lane) * 2 + i % 2, 0};
  return {(size_t{i} * kRunTokens + lane) * kBytes<F>, 0};
}

template <KvFormat F>
Place ValuePlace(uint32_t stride, uint32_t lane, uint32_t i) {
  const size_t pair = lane / 2;
  if constexpr (kBytes<F> == 0) {
    return {pair * stride + i / 32 * 32 + i % 16 * 2 + lane % 2, i % 32 / 16 * 4};
  }
  if constexpr (F == KvFormat::kInt8) return {(pair * stride + i) * 2 + lane % 2, 0};
  return {(size_t{lane} * stride + i) * kBytes<F>, 0};
}

template <KvFormat F>
using Code = std::conditional_t<kBytes<F> == 4, float,
                                std::conditional_t<kBytes<F> == 2, uint16_t, uint8_t>>;

template <KvFormat F>
Code<F> CodeOf(float x) {
  if constexpr (F == KvFormat::kF32) return x;
  if constexpr (F == KvFormat::kF16) return ToF16(x);
  if constexpr (F == KvFormat::kBf16) return ToBf16(x);
  return Encode(F, x);
}

template <KvFormat F>
void Put(Code<F> code, const Place& place, std::byte* run) {
  std::byte* to = run + place.byte;
  if constexpr (kBytes<F> != 0) {
    std::memcpy(to, &code, kBytes<F>);
  } else {
    const auto kept = *to & static_cast<std::byte>(0xf0 >> place.shift);
    *to = kept | static_cast<std::byte>(code) << place.shift;
  }
}

// Puts x[n] * inverse and zeros up to `padded` where place(i) says. The codes are made 16 at once,
// in vectors.
template <KvFormat F, typename PlaceOf>
void PutAll(const float* x, uint32_t n, uint32_t padded, float inverse, std::byte* run,
            PlaceOf place) {
  constexpr uint32_t kCodes = 16;
  uint32_t i = 0;
  for (; i + kCodes <= n; i += kCodes) {
    const float* from = x + i;
    Code<F> codes[kCodes];
    for (size_t j = 0; j < kCodes; ++j) codes[j] = CodeOf<F>(from[j] * inverse);
    for (uint32_t j = 0; j < kCodes; ++j) Put<F>(codes[j], place(i + j), run);
  }
  for (; i < n; ++i) Put<F>(CodeOf<F>(x[i] * inverse), place(i), run);
  for (; i < padded; ++i) Put<F>(CodeOf<F>(0.0f), place(i), run);
}

template <KvFormat F>
float Get(const Place& place, const std::byte* run) {
  const std::byte* from = run + place.byte;
  if constexpr (kBytes<F> == 4) {
    float x;
    std::memcpy(&x, from, 4);
    return x;
  } else if constexpr (kBytes<F> == 2) {
    uint16_t half;
    std::memcpy(&half, from, 2);
    return F == KvFormat::kF16 ? FromF16(half) : FromBf16(half);
  } else {
    return Decode(F, static_cast<uint8_t>(static_cast<uint8_t>(*from) >> place.shift));
  }
}

// Writes the scale to scales[lane] and returns 1 / scale; returns 1 for a format without scales.
template <KvFormat F>
float Inverse(const float* x, uint32_t head_dim, uint32_t lane, uint16_t* scales) {
  if constexpr (kBytes<F> >= 2) return 1.0f;
  scales[lane] = ScaleOf(F, {x, head_dim});
  return scales[lane] == 0 ? 0.0f : 1.0f / FromBf16(scales[lane]);
}

// Calls fn<F>(...) for the format.
template <typename Fn>
auto ForFormat(KvFormat format, Fn&& fn) {
  switch (format) {
    case KvFormat::kF32:
      return fn.template operator()<KvFormat::kF32>();
    case KvFormat::kF16:
      return fn.template operator()<KvFormat::kF16>();
    case KvFormat::kBf16:
      return fn.template operator()<KvFormat::kBf16>();
    case KvFormat::kFp8E4m3:
      return fn.template operator()<KvFormat::kFp8E4m3>();
    case KvFormat::kFp8E5m2:
      return fn.template operator()<KvFormat::kFp8E5m2>();
    case KvFormat::kInt8:
      return fn.template operator()<KvFormat::kInt8>();
    case KvFormat::kInt4:
      return fn.template operator()<KvFormat::kInt4>();
    case KvFormat::kNf4:
      break;
  }
  return fn.template operator()<KvFormat::kNf4>();
}

}  // namespace

void PackKey(const float* k, KvFormat format, uint32_t head_dim, uint32_t lane, std::byte* run,
             uint16_t* scales) {
  const uint32_t dims = KeyDims(format, head_dim);
  ForFormat(format, [&]<KvFormat F>() {
    const float inverse = Inverse<F>(k, head_dim, lane, scales);
    PutAll<F>(k, head_dim, dims, inverse, run, [&](uint32_t i) { return KeyPlace<F>(lane, i); });
  });
}

void PackValue(const float* v, KvFormat format, uint32_t head_dim, uint32_t lane, std::byte* run,
               uint16_t* scales) {
  const uint32_t stride = ValueStride(format, head_dim);
  ForFormat(format, [&]<KvFormat F>() {
    const float inverse = Inverse<F>(v, head_dim, lane, scales);
    PutAll<F>(v, head_dim, stride, inverse, run,
              [&](uint32_t i) { return ValuePlace<F>(stride, lane, i); });
  });
}

float KeyNumber(KvFormat format, const std::byte* run, uint32_t lane, uint32_t i) {
  return ForFormat(format, [&]<KvFormat F>() { return Get<F>(KeyPlace<F>(lane, i), run); });
}

float ValueNumber(KvFormat format, uint32_t head_dim, const std::byte* run, uint32_t lane,
                  uint32_t i) {
  const uint32_t stride = ValueStride(format, head_dim);
  return ForFormat(format,
                   [&]<KvFormat F>() { return Get<F>(ValuePlace<F>(stride, lane, i), run); });
}

}  // namespace kvasir
