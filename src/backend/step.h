// The rows of a step, from several sequences.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "attention/kernels.h"
#include "backend/packed_adapter.h"
#include "block/block_table.h"

namespace kvasir {

// Cached tokens that rows see before the last ones of their sequence's tables, in layers of `full`
// groups: slots [first, last) of tables, whatever positions those tokens have in the text. Keys
// stay as they were rotated; a run that is seen from another place than the row's is asked by the
// query rotated to that place.
struct StepRun {
  std::span<const BlockTable> tables;  // [full groups]; empty: those of the sequence
  uint32_t first, last;
  std::optional<uint32_t> query_position = {};  // absent: the row's position less `shift`
  uint32_t shift = 0;

  bool is_elsewhere() const { return query_position || shift > 0; }
  uint32_t QueryPosition(uint32_t row_position) const {
    return query_position.value_or(row_position - shift);
  }
};

// Rows [first_row, first_row + num_rows) of a step: tokens at positions position, position + 1, ...
// of one sequence. `tables` [layer groups] have room for position + num_rows tokens each; tokens
// before `position` are there already, of a window's those that the first row sees. The blocks that
// the new rows fall into are written (packed K and V), all others only read.
struct StepSequence {
  std::span<const BlockTable> tables;
  uint32_t position;
  uint32_t first_row;
  uint32_t num_rows;
  // For a RetentionPolicy. In layer l a row sees the tokens of masks[l] that are not after it;
  // empty: all. Each row must see a token. Attention adds each cached token's softmax
  // weights, row by row and head by head, to token_sums: [layer][kv_head][sums_stride], where
  // sums_stride is a multiple of 64 and at least position + num_rows; absent: no sums.
  std::span<const TokenMask> masks = {};
  float* token_sums = nullptr;
  size_t sums_stride = 0;
  bool long_rope = false;  // rotated by BackendOptions::Rope::long_frequencies
  // Tokens of the source, whose K and V the tables of `cross` groups hold: each row sees all of
  // them there. 0: the layout has no such groups.
  uint32_t source_tokens = 0;
  // What the rows are computed with beside the model, by ascending digest; empty: nothing.
  std::span<const AppliedAdapter> adapters = {};
  // What rows see in layers of `full` groups: `runs` in order, and then of the tables the last
  // `window` tokens, their own included (0: no limit), from token `begin` on. The softmax walks
  // each run by its own tiles and merges them in order. REQUIRES: no token_sums with runs.
  std::span<const StepRun> runs = {};
  uint32_t window = 0;
  uint32_t begin = 0;
  // For RetentionPolicy's heavy. Attention adds the weights that rows from `scored_from` on give to
  // each 16 tokens, row by row and head by head, to block_sums: [layer of `full` groups]
  // [kv_head][block_sums_stride], the blocks of the runs' tables by their slots and then those of
  // the tables from `begin` on. Runs with a query position are left out. Absent: no sums.
  // REQUIRES: runs of the same tables; they and `begin` end with whole blocks.
  float* block_sums = nullptr;
  size_t block_sums_stride = 0;
  uint32_t scored_from = 0;  // of its rows

  // Returns how many blocks of block_sums stand before those of the tables.
  uint32_t run_blocks() const { return runs.empty() ? 0 : runs.back().last / kRunTokens; }

  // Returns whether a row may see less than all tokens before it.
  bool is_bounded() const { return window > 0 || begin > 0 || !runs.empty(); }
};

// Rows [first_row, first_row + num_rows) of an encoder's step: a whole source. `tables`
// [layer groups]: those of `cross` groups have room for num_rows tokens, and are written.
struct StepSource {
  std::span<const BlockTable> tables;
  uint32_t first_row;
  uint32_t num_rows;
};

}  // namespace kvasir
