// Paged attention of one target: reads blocks in place, in any KvFormat (portable-1:
// softmax tiles of 64 tokens and spans of 256 by absolute position, merged in order).
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/scratch.h"
#include "block/block_layout.h"
#include "simd/target.h"

namespace kvasir {

inline constexpr uint32_t kAttentionSpan = 256;  // tokens

// One layer's K and V of a sequence: bases of its blocks and where the layer lies in a block.
struct PagedKv {
  PagedKv(std::byte* const* bases, const BlockLayout& layout, uint32_t layer)
      : blocks(bases),
        k(layout.key(layer)),
        v(layout.value(layer)),
        block_tokens(layout.block_tokens()),
        head_dim(layout.shape().head_dim) {}
  std::byte* const* blocks;
  BlockPart k, v;
  uint32_t block_tokens, head_dim;
};

// Counts the numbers of an unfinished softmax over [acc: value_stride][m, l], value_stride =
// head_dim rounded up to 16; m = -inf, l = 0, acc = 0 at first.
inline uint32_t PartialFloats(uint32_t head_dim) { return (head_dim + 15) / 16 * 16 + 2; }

// Which cached tokens a sequence's queries see in one layer: bit t % 64 of word t / 64 of each kv
// head. Tokens with a cleared bit are skipped; bits beyond a row's limit do not matter. (For a
// RetentionPolicy that keeps sinks, a window or heavy hitters.)
struct TokenMask {
  const uint64_t* words = nullptr;  // absent: all tokens are seen
  size_t head_words = 0;            // between kv heads

  uint64_t Tile(uint32_t kv_head, uint32_t token) const {
    return words == nullptr ? ~uint64_t{0} : words[kv_head * head_words + token / kAttentionTile];
  }
};

struct AttentionKernels {
  // Attention of `rows` rows, for the query heads of kv heads [kv_head_begin, kv_head_end), over
  // the tokens of spans [span_begin, span_end) from begin[row] on and below limit[row]. REQUIRES:
  // limit ascends from row to row. Blocks of 64-token tiles that no row sees are not touched; in
  // the tile of the first token that is seen all blocks can be read, whatever they hold. All rows
  // read the same blocks. q[row]: [head][head_dim] of all heads, already multiplied by
  // 1/sqrt(head_dim); `group` query heads share a kv head.
  // partial[row]: [span - span_begin][head - first head][PartialFloats], spans span_stride floats
  // apart; each span of each row is merged into its place, which must be an empty softmax or what
  // comes before. With span_stride 0 all spans are merged, in order, into one.
  struct Args {
    const PagedKv* kv;
    const AttentionScratch* scratch;  // REQUIRES: rows * heads at hand <= its max_queries
    uint32_t rows, group;
    uint32_t kv_head_begin, kv_head_end;
    uint32_t span_begin, span_end;
    const float* const* q;
    const uint32_t* limit;
    float* const* partial;
    size_t span_stride;
    TokenMask mask;
    const uint32_t* begin = nullptr;  // absent: 0 (a window of w: limit - w where that is more)
    // Not 0: each score becomes softcap * tanh(q . k), before masks and softmax (Gemma 2); q is
    // then multiplied by 1/softcap too.
    float softcap = 0;
  };
  void (*attend)(const Args& args);

  // Adds softmax sums: sums[kv head - first][token - first] += e^(score - m) / l of each row and
  // query head, one after the other, for the tokens that `args` names; softmax[row]: (m, l) of each
  // query head at hand, as attend and merge left them over all spans. partial and span_stride are
  // not used. Sums have room for whole tiles. O(rows * heads * tokens * head_dim).
  void (*sum_weights)(const Args& args, const float* const* softmax, float* const* sums);
  // Does so for each 16 tokens: adds the sum of their weights, by one tree, to sums[kv head -
  // first][token / 16 - first_block]. REQUIRES: no token before first_block is seen.
  void (*sum_blocks)(const Args& args, const float* const* softmax, uint32_t first_block,
                     float* const* sums);

  // Merges the later spans' partial b into a: the same arithmetic that attend uses between spans.
  void (*merge)(float* a, const float* b, uint32_t head_dim);
  // out[i] = acc[i] / l, i < head_dim.
  void (*finish)(const float* partial, uint32_t head_dim, float* out);
  // out[i] = q[i] * scale.
  void (*scale)(const float* q, float scale, uint32_t n, float* out);
};

// REQUIRES: the CPU has the target.
const AttentionKernels& AttentionKernelsFor(Target target);

namespace scalar {
extern const AttentionKernels kAttentionKernels;
}
namespace avx2 {
extern const AttentionKernels kAttentionKernels;
}
namespace avxvnni {
extern const AttentionKernels kAttentionKernels;
}
namespace avx512 {
extern const AttentionKernels kAttentionKernels;
}
namespace avx512vnni {
extern const AttentionKernels kAttentionKernels;
}
namespace neon {
extern const AttentionKernels kAttentionKernels;
}

}  // namespace kvasir
