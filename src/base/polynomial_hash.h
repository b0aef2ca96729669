// PolynomialHash: a hash under a secret key, for tables whose entries others may choose.
#pragma once

#include <cstdint>
#include <string_view>

namespace kvasir {

// A polynomial of the words of a text at a secret point: two different texts of n bytes have the
// same value with a probability of at most n / 2^63 (Carter and Wegman). Immutable; thread-safe.
class PolynomialHash {
 public:
  explicit PolynomialHash(uint64_t key);  // random
  // Returns a value smaller than 2^61 - 1. `seed`: texts with different ones are different texts.
  // O(bytes).
  uint64_t Of(std::string_view text, uint64_t seed = 0) const;

 private:
  const uint64_t key_, key4_;  // and its fourth power
};

}  // namespace kvasir
