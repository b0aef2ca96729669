// Unigram: cuts a text into the pieces whose scores have the largest sum (Kudo, 2018).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "kvasir/status.h"
#include "kvasir/types.h"

namespace kvasir {

// Finds the cut of SentencePiece, bit for bit: sums are f32, from the text's begin on; of equal
// sums the cut with the longest last piece counts. Immutable; thread-safe.
class Unigram {
 public:
  struct Piece {
    std::string_view text;  // not empty
    float score = 0;
    TokenId id = 0;
  };
  // REQUIRES: the texts differ and outlive this.
  explicit Unigram(std::vector<Piece> pieces);

  // Calls fn(part, piece) for each part of the text in order, until it returns false; piece:
  // nullptr for a character that no piece is. kInvalidArgument: 2^20 bytes or more in which every
  // character is inside of some piece. O(bytes * longest piece * log(pieces)).
  Status Cut(std::string_view text,
             const std::function<bool(std::string_view part, const Piece* piece)>& fn) const;

 private:
  using Range = std::pair<uint32_t, uint32_t>;  // of pieces_
  Range Narrow(Range range, size_t depth, uint8_t byte) const;

  std::vector<Piece> pieces_;          // by text
  std::array<Range, 256> first_byte_;  // those that begin with a byte
  float unknown_score_ = 0;
};

}  // namespace kvasir
