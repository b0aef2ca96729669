// Counter-based random numbers: a draw is a pure function of its coordinates, so other requests
// cannot change it.
#pragma once

#include <cstdint>

namespace kvasir {

// Mixes as SplitMix64's finaliser (Steele, Lea, Flood, 2014).
constexpr uint64_t Mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// Returns 64 random bits for (seed, choice, position).
constexpr uint64_t DrawBits(uint64_t seed, uint64_t choice, uint64_t position) {
  return Mix64(Mix64(Mix64(seed) ^ choice) ^ position);
}

// Returns a uniform number in [0, 1), 53 bits.
constexpr double DrawUniform(uint64_t seed, uint64_t choice, uint64_t position) {
  return static_cast<double>(DrawBits(seed, choice, position) >> 11) * 0x1p-53;
}

// A sequential generator for tests and synthetic data. One thread at a time.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Bits() { return Mix64(state_++); }
  uint64_t Below(uint64_t n) { return Bits() % n; }  // n > 0
  double Uniform() { return static_cast<double>(Bits() >> 11) * 0x1p-53; }

 private:
  uint64_t state_;
};

}  // namespace kvasir
