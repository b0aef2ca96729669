// EncoderKv: K and V of an encoder's own attention, over the sources of one step.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/step.h"
#include "block/block_pool.h"
#include "block/block_table.h"
#include "block/kv_layout.h"
#include "import/model_config.h"
#include "kvasir/status.h"

namespace kvasir {

// Blocks for the layer that is computed, which alone reads them, and a table for each source. After
// Create it allocates nothing. One thread.
class EncoderKv {
 public:
  static KvLayout Layout(const EncoderConfig& encoder);
  // Returns the bytes that Create allocates for sources of `max_rows` tokens in all.
  static uint64_t Bytes(const EncoderConfig& encoder, uint32_t max_rows);
  // kExhausted: there is no memory for the blocks.
  static Result<EncoderKv> Create(const EncoderConfig& encoder, uint32_t max_rows);

  // Gives each source its blocks, and returns the sources as sequences over them, until the next
  // call of Begin or Into.
  std::span<const StepSequence> Begin(std::span<const StepSource> step);
  // Returns the sequences of Begin over the tables of `step`, where the decoder finds them.
  std::span<const StepSequence> Into(std::span<const StepSource> step);
  // Zeroes the blocks and forgets the sources.
  void Zero();
  uint64_t arena_bytes() const { return pool_->arena_bytes(); }

 private:
  std::unique_ptr<BlockPool> pool_;
  std::vector<BlockTable> tables_;
  std::vector<StepSequence> sources_;
};

}  // namespace kvasir
