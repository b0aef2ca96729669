// Paged attention of one target: reads blocks in place, whatever their KvFormat (portable-1:
// softmax tiles of 64 tokens and spans of 256 by absolute position, merged in order).
#pragma once

#include <cstddef>
#include <cstdint>

#include "block/block_layout.h"
#include "simd/target.h"

namespace kvasir {

inline constexpr uint32_t kAttentionTile = 64;   // tokens
inline constexpr uint32_t kAttentionSpan = 256;  // tokens

// One layer's K and V of a sequence: bases of its blocks and where the layer lies in a block.
struct PagedKv {
  std::byte* const* blocks;
  uint64_t key_offset, value_offset;
  KvFormat k_format, v_format;
  uint32_t block_tokens, kv_heads, head_dim, value_stride;
};

// Numbers of an unfinished softmax over [acc: value_stride][m, l]; m = -inf, l = 0, acc = 0 at
// first.
inline uint32_t PartialFloats(uint32_t value_stride) { return value_stride + 2; }

struct AttentionKernels {
  // For queries i < count, all of kv head `kv_head`: attention over the tokens of spans
  // [span_begin, span_end) below limit[i], merged in order into partial[i]. q[i]: [head_dim],
  // already multiplied by 1/sqrt(head_dim). limit must not fall along i. count <= kMaxQueries.
  struct Args {
    const PagedKv* kv;
    uint32_t kv_head;
    uint32_t count;
    const float* const* q;
    const uint32_t* limit;
    float* const* partial;
    uint32_t span_begin, span_end;
  };
  void (*attend)(const Args& args);

  // Merges the later spans' partial b into a: the same arithmetic that attend uses between spans.
  void (*merge)(float* a, const float* b, uint32_t value_stride);
  // out[i] = acc[i] / l, i < head_dim.
  void (*finish)(const float* partial, uint32_t head_dim, uint32_t value_stride, float* out);
  // out[i] = q[i] * scale.
  void (*scale)(const float* q, float scale, uint32_t n, float* out);
};

inline constexpr uint32_t kMaxQueries = 32;

// REQUIRES: the CPU has the target.
const AttentionKernels& AttentionKernelsFor(Target target);

namespace scalar {
extern const AttentionKernels kAttentionKernels;
}
namespace avx2 {
extern const AttentionKernels kAttentionKernels;
}
namespace avx512 {
extern const AttentionKernels kAttentionKernels;
}
namespace neon {
extern const AttentionKernels kAttentionKernels;
}

}  // namespace kvasir
