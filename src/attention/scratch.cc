#include "attention/scratch.h"

#include <new>

namespace kvasir {

AttentionScratch::AttentionScratch(uint32_t head_dim, uint32_t max_queries, Arena& arena)
    : max_queries(max_queries),
      key_dims_(RoundUp(head_dim, 16)),
      value_dims_(RoundUp(head_dim, 32)) {
  queries = arena.TakeArray<AttentionQuery>(max_queries);
  key_tile = arena.TakeArray<float>(kAttentionTile * key_dims_);
  value_tile = arena.TakeArray<float>(kAttentionTile * value_dims_);
  q16_ = arena.TakeArray<int16_t>(max_queries * key_dims_);
  acc_ = arena.TakeArray<float>(max_queries * (value_dims_ + 16));
  sum_ = arena.TakeArray<int32_t>(max_queries * value_dims_);
  MakeQueries();
}

void AttentionScratch::MakeQueries() {
  if (queries == nullptr) return;  // the arena only counts
  for (uint64_t i = 0; i < max_queries; ++i) {
    AttentionQuery* query = new (queries + i) AttentionQuery{};
    query->q16 = q16_ + i * key_dims_;
    query->acc = acc_ + i * (value_dims_ + 16);
    query->sum = sum_ + i * value_dims_;
  }
}

}  // namespace kvasir
