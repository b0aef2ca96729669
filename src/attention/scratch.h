// AttentionScratch: the scratch memory of one thread that computes attention.
#pragma once

#include <cstdint>

#include "base/arena.h"

namespace kvasir {

inline constexpr uint32_t kAttentionTile = 64;  // tokens
inline constexpr uint32_t kMaxTileRows = 8;     // rows that read K and V as they are stored

// One query head of one row: its softmax over the current span and tile.
struct alignas(64) AttentionQuery {
  float score[kAttentionTile];     // scores, then weights (times V's scale, where V has one)
  float lanes[16];                 // sums of weights
  int16_t weight[kAttentionTile];  // score rounded to int16, for integer V
  const float* q;                  // [head_dim]
  int16_t* q16;                    // q / q_scale, for integer K: [head_dim rounded up to 16]
  float* acc;                      // [value_stride], m and l when merged
  int32_t* sum;                    // of the tile, for integer V: [head_dim rounded up to 32]
  float q_scale, weight_scale;
  int32_t q_sum, weight_sum;  // of q16 and weight
  float m;
};

// Thread-compatible. Memory comes from an arena, which may be one that only counts.
class AttentionScratch {
 public:
  AttentionScratch() = default;
  AttentionScratch(uint32_t head_dim, uint32_t max_queries, Arena& arena);
  // Makes the queries, which the constructor does: again after the arena was zeroed.
  void MakeQueries();

  uint32_t max_queries = 0;
  AttentionQuery* queries = nullptr;  // [max_queries]
  float* key_tile = nullptr;          // a tile of K, widened: [64][head_dim rounded up to 16]
  float* value_tile = nullptr;        // a tile of V, widened: [64][head_dim rounded up to 32]

 private:
  uint64_t key_dims_ = 0, value_dims_ = 0;  // rounded up
  int16_t* q16_ = nullptr;
  float* acc_ = nullptr;
  int32_t* sum_ = nullptr;
};

}  // namespace kvasir
