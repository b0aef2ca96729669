// Activations: where a step keeps what its layers compute.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/arena.h"
#include "base/bytes.h"
#include "import/model_config.h"

namespace kvasir {

// Activations of one step, by the same sums whether the arena counts or allocates.
struct Activations {
  Activations(const ModelConfig& c, uint32_t max_rows, uint32_t max_logit_rows, Arena& arena) {
    const size_t rows = max_rows;
    hidden_stride = RowStride(c.hidden_size);
    uint64_t qkv_size = uint64_t{c.num_heads + 2 * c.num_kv_heads} * c.head_dim;
    uint64_t attention_size = uint64_t{c.num_heads} * c.head_dim, ffn_size = c.ffn_size;
    if (c.encoder) {
      const uint64_t encoder_size = uint64_t{c.encoder->num_heads} * c.encoder->head_dim;
      qkv_size = std::max(qkv_size, 3 * encoder_size);
      attention_size = std::max(attention_size, encoder_size);
      ffn_size = std::max<uint64_t>(ffn_size, c.encoder->ffn_size);
    }
    qkv_stride = RowStride(qkv_size);
    attention_stride = RowStride(attention_size);
    ffn_stride = RowStride(ffn_size);
    x = arena.TakeArray<float>(rows * hidden_stride);
    normed = arena.TakeArray<float>(rows * hidden_stride);
    qkv = arena.TakeArray<float>(rows * qkv_stride);
    attention = arena.TakeArray<float>(rows * attention_stride);
    ffn = arena.TakeArray<float>(rows * ffn_stride);
    head = arena.TakeArray<float>(max_logit_rows * hidden_stride);
  }

  // Returns the floats from one row of `n` to the next. Rows a multiple of 1 KiB apart would fall
  // into the same few cache sets.
  static size_t RowStride(uint64_t n) {
    const uint64_t stride = RoundUp(n, 16);
    return stride % 256 == 0 ? stride + 16 : stride;
  }

  size_t hidden_stride, qkv_stride, attention_stride, ffn_stride;
  float *x, *normed, *qkv, *attention, *ffn;
  float* head;  // the gathered rows of the output head
};

}  // namespace kvasir
