#include "base/polynomial_hash.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace kvasir {
namespace {

constexpr uint64_t kPrime = (uint64_t{1} << 61) - 1;
constexpr size_t kWordBytes = 7;  // a word of the hash is smaller than the prime

// Returns a * b + c modulo the prime. REQUIRES: all are smaller than it.
uint64_t MultiplyAdd(uint64_t a, uint64_t b, uint64_t c) {
  const auto product = static_cast<unsigned __int128>(a) * b + c;
  const uint64_t sum =
      static_cast<uint64_t>(product & kPrime) + static_cast<uint64_t>(product >> 61);
  return sum >= kPrime ? sum - kPrime : sum;
}

uint64_t Square(uint64_t a) { return MultiplyAdd(a, a, 0); }

}  // namespace

PolynomialHash::PolynomialHash(uint64_t key) : key_(key % kPrime), key4_(Square(Square(key_))) {}

uint64_t PolynomialHash::Of(std::string_view text, uint64_t seed) const {
  const auto word_at = [&](size_t at) {
    uint64_t word = 0;
    if (at + sizeof(word) <= text.size()) {
      std::memcpy(&word, text.data() + at, sizeof(word));
      return word & ((uint64_t{1} << (8 * kWordBytes)) - 1);
    }
    std::memcpy(&word, text.data() + at, std::min(kWordBytes, text.size() - at));
    return word;
  };
  // Every fourth word goes to the same sum: four products at a time hide how long each takes.
  std::array<uint64_t, 4> sums = {0, 0, seed % kPrime, text.size()};
  size_t at = 0;
  for (; at + sums.size() * kWordBytes <= text.size(); at += sums.size() * kWordBytes) {
    for (size_t i = 0; i < sums.size(); ++i) {
      sums[i] = MultiplyAdd(sums[i], key4_, word_at(at + i * kWordBytes));
    }
  }
  uint64_t hash = 0;
  for (const uint64_t sum : sums) hash = MultiplyAdd(hash, key_, sum);
  for (; at < text.size(); at += kWordBytes) hash = MultiplyAdd(hash, key_, word_at(at));
  return hash;
}

}  // namespace kvasir
