// BlockSums: the memory of the softmax weights that RetentionPolicy's heavy looks at.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "block/kv_layout.h"

namespace kvasir {

// One slot for each sequence that runs. A sequence takes one before the tokens whose weights count
// at its next decision, and gives it back after that. Slots are zero when they are taken. Allocates
// nothing after construction. One thread at a time.
class BlockSums {
 public:
  struct Shape {
    uint32_t rows = 0;    // layers of `full` groups x KV heads
    uint32_t blocks = 0;  // the most that a sequence holds at a decision
  };
  // Returns the shape for sequences that have at most ctx_size exact tokens (0: none has heavy);
  // empty where the blocks of the layout are not those of heavy.
  static Shape ShapeFor(const KvLayout& layout, uint32_t ctx_size);
  // Returns the exact bytes that the constructor will allocate for so many slots.
  static uint64_t BytesFor(const Shape& shape, uint32_t slots) {
    return uint64_t{slots} * shape.rows * shape.blocks * sizeof(float);
  }

  BlockSums(const Shape& shape, uint32_t slots);
  uint64_t bytes() const { return bytes_; }

  // A taken slot, or none: [layer][kv_head][stride]. Move-only; zeroes and gives back its memory.
  // Must not outlive its BlockSums.
  class Slot {
   public:
    Slot() = default;
    Slot(Slot&& other) noexcept { *this = std::move(other); }
    Slot& operator=(Slot&& other) noexcept;
    ~Slot() { Release(); }
    void Release();

    bool is_taken() const { return owner_ != nullptr; }
    float* data() const { return data_; }
    uint32_t stride() const { return stride_; }
    // Returns a block's sum over all layers and heads, in order.
    float SumOf(uint32_t block) const;
    // Returns another slot with the same sums.
    Slot Copy() const;

   private:
    friend class BlockSums;
    BlockSums* owner_ = nullptr;
    float* data_ = nullptr;
    uint32_t stride_ = 0;
  };
  const Shape& shape() const { return shape_; }
  // Takes a slot for so many blocks. REQUIRES: a slot is free; blocks <= the shape's.
  Slot Take(uint32_t blocks);

 private:
  const Shape shape_;
  const uint64_t bytes_;
  std::unique_ptr<float[]> sums_;  // [slot][rows x blocks]
  std::vector<float*> free_;
};

}  // namespace kvasir
