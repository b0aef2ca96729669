// KvFormat: how K and V numbers are stored in a block.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir {

// Stored in identities and on disk. Never renumber.
enum class KvFormat : uint8_t {
  kF32 = 1,
  kF16 = 2,
  kBf16 = 3,
  kFp8E4m3 = 4,
  kFp8E5m2 = 5,
  kInt8 = 6,
  kInt4 = 7,
  kNf4 = 8
};

// How attention multiplies. kIntegers: int8 numbers (nf4's levels are int8 too) times queries and
// weights rounded to int16, with exact sums.
enum class KvMath : uint8_t { kFloats, kIntegers };

struct KvFormatTraits {
  std::string_view name;
  uint32_t bits;         // per number, without scales
  uint32_t unit_tokens;  // tokens packed at once; divides block_tokens
  bool scaled;           // a bf16 scale per token and head
  bool rotated;          // keys are multiplied by a Hadamard matrix, queries by its inverse
  KvMath math;
};

const KvFormatTraits& TraitsOf(KvFormat format);
std::optional<KvFormat> ParseKvFormat(std::string_view name);
std::string KvFormatNames();  // "f32, f16, ...", for messages

// The formats of one layer. A single format applies to both.
struct KvFormats {
  KvFormats(KvFormat both) : k(both), v(both) {}  // NOLINT(google-explicit-constructor)
  KvFormats(KvFormat keys, KvFormat values) : k(keys), v(values) {}
  bool operator==(const KvFormats&) const = default;
  KvFormat k, v;
};

// Parses "int8", or "k=int8,v=f16" (both parts, in any order).
std::optional<KvFormats> ParseKvFormats(std::string_view text);
// Reads names of formats in other engines and libraries, mapped to the closest format here
// with as many bits: "q8_0" is int8, "k=half,v=q4_0" is k=f16,v=int4. Only for hints in errors.
std::optional<KvFormats> SimilarKvFormats(std::string_view text);
std::string NameOf(const KvFormats& formats);

// Tokens in a run: lanes of the widest vector. block_tokens is a multiple of it.
inline constexpr uint32_t kRunTokens = 16;

// Returns the bytes of a key. The numbers of one kv head of a run are together, its scales
// elsewhere (BlockLayout). Bytes of a run:
//   K  f32 f16 bf16 fp8  [head_dim][16]             lanes = tokens: a query x key product has no
//                                                   sum across lanes
//      int8              [head_dim / 2][16][2]      lanes hold pairs of dims
//      int4 nf4          [head_dim / 8][16][2] 16-bit words; nibble p of word w: dim 2p + w of 8
//   V  f32 f16 bf16 fp8  [16][stride]               lanes = head dims
//      int8              [8][stride][2]             lanes hold pairs of tokens
//      int4 nf4          [8][stride / 32][16][2]    bytes; low nibble: dim lane of 32, high: dim
//                                                   16 + lane
// head_dim is rounded up to 2 or 8 for K; stride = head_dim rounded up to 16 (nibbles: 32). The
// padding is zero. No byte has numbers of two tokens, so packing a token never writes bytes of
// another.
uint32_t KeyDims(KvFormat format, uint32_t head_dim);
uint32_t ValueStride(KvFormat format, uint32_t head_dim);
inline uint64_t KeyRunBytes(KvFormat format, uint32_t head_dim) {
  return uint64_t{KeyDims(format, head_dim)} * kRunTokens * TraitsOf(format).bits / 8;
}
inline uint64_t ValueRunBytes(KvFormat format, uint32_t head_dim) {
  return uint64_t{ValueStride(format, head_dim)} * kRunTokens * TraitsOf(format).bits / 8;
}

}  // namespace kvasir
