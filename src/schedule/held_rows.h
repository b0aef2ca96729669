// HeldRows: what rows keep while it is found out which token may come next in their format.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace kvasir {

struct HeldRow {
  std::vector<float> hidden;    // [hidden_size], final: of the row's last token
  std::vector<uint64_t> legal;  // [MaskWords(vocab)]
};

// The memory of so many rows, which it allocates at once. What comes back is zeroed: activations
// must not outlive an erase, and nothing says later which request they belonged to. One thread.
class HeldRows {
 public:
  struct GiveBack {
    HeldRows* to;
    void operator()(HeldRow* row) const;
  };
  using Held = std::unique_ptr<HeldRow, GiveBack>;

  HeldRows(uint32_t num_rows, uint32_t hidden_size, uint32_t vocab_size);
  HeldRows(const HeldRows&) = delete;
  HeldRows& operator=(const HeldRows&) = delete;
  // Returns the bytes of its rows: what the constructor will allocate, and what it did allocate.
  static uint64_t BytesFor(uint32_t num_rows, uint32_t hidden_size, uint32_t vocab_size);
  uint64_t bytes() const;

  // REQUIRES: one is free. This must outlive it.
  Held Take();

 private:
  std::vector<HeldRow> rows_;
  std::vector<HeldRow*> free_;
};

}  // namespace kvasir
