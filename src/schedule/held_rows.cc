#include "schedule/held_rows.h"

#include <algorithm>

#include "base/check.h"
#include "grammar/token_trie.h"

namespace kvasir {

HeldRows::HeldRows(uint32_t num_rows, uint32_t hidden_size, uint32_t vocab_size) : rows_(num_rows) {
  free_.reserve(num_rows);
  for (HeldRow& row : rows_) {
    row.hidden.resize(hidden_size);
    row.legal.resize(MaskWords(vocab_size));
    free_.push_back(&row);
  }
}

uint64_t HeldRows::BytesFor(uint32_t num_rows, uint32_t hidden_size, uint32_t vocab_size) {
  return uint64_t{num_rows} *
         (hidden_size * sizeof(float) + MaskWords(vocab_size) * sizeof(uint64_t));
}

uint64_t HeldRows::bytes() const {
  uint64_t bytes = 0;
  for (const HeldRow& row : rows_) {
    bytes += row.hidden.capacity() * sizeof(float) + row.legal.capacity() * sizeof(uint64_t);
  }
  return bytes;
}

void HeldRows::GiveBack::operator()(HeldRow* row) const {
  std::ranges::fill(row->hidden, 0.0F);
  std::ranges::fill(row->legal, 0);
  to->free_.push_back(row);
}

HeldRows::Held HeldRows::Take() {
  KV_CHECK(!free_.empty());
  HeldRow* const row = free_.back();
  free_.pop_back();
  return Held(row, GiveBack{this});
}

}  // namespace kvasir
