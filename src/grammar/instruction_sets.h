// InstructionSets: sets of instructions, by number.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvasir {

// Sets, numbered from 0 as they are added; equal ones have the same number. They stand side by side
// and take 4 bytes for each instruction and some 16 for each set, where a map of vectors took 150:
// the compiler has 225,000 of them for 25,000 words of 3 Chinese characters. One thread at a time.
class InstructionSets {
 public:
  uint32_t size() const { return static_cast<uint32_t>(begins_.size()); }
  uint64_t num_instructions() const { return all_.size(); }  // of all sets
  // Returns a set, which is valid until the next Add.
  std::span<const uint32_t> at(uint32_t set) const {
    const size_t end = set + 1 < begins_.size() ? begins_[set + 1] : all_.size();
    return std::span(all_).subspan(begins_[set], end - begins_[set]);
  }
  // Returns the number of a set, which it adds where it is new. REQUIRES: the set ascends, and all
  // have less than 2^32 instructions.
  uint32_t Add(std::span<const uint32_t> set) {
    if (2 * begins_.size() >= slots_.size()) Rebuild();
    const size_t slot = SlotOf(set);
    if (slots_[slot] != 0) return slots_[slot] - 1;
    begins_.push_back(static_cast<uint32_t>(all_.size()));
    all_.insert(all_.end(), set.begin(), set.end());
    slots_[slot] = size();
    return size() - 1;
  }

 private:
  // Returns where a set is, or would be.
  size_t SlotOf(std::span<const uint32_t> set) const {
    uint64_t hash = 0;
    for (const uint32_t i : set) {
      hash = (hash ^ i) * 0x9E3779B97F4A7C15ULL;
      hash ^= hash >> 32;
    }
    for (size_t slot = hash;; ++slot) {
      slot &= slots_.size() - 1;
      if (slots_[slot] == 0 || std::ranges::equal(at(slots_[slot] - 1), set)) return slot;
    }
  }
  void Rebuild() {
    slots_.assign(std::max<size_t>(16, 2 * slots_.size()), 0);
    for (uint32_t set = 0; set < size(); ++set) slots_[SlotOf(at(set))] = set + 1;
  }

  std::vector<uint32_t> all_;     // instructions
  std::vector<uint32_t> begins_;  // of the sets; each ends where the next one begins
  std::vector<uint32_t> slots_;   // number + 1; 0: free
};

}  // namespace kvasir
