// Belady's optimum: the most hits that any policy can have, knowing the future.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvasir {

// Hits of L. A. Belady's MIN ("A study of replacement algorithms for a virtual-storage computer",
// IBM Systems Journal, 1966) on the references of `prompts`, one after the other, in a cache of
// `num_blocks`: each reference enters, and what is used again last, or never, goes. A cache of
// prefixes has no more: it drops leaves first, and keeps all blocks of a prompt while it runs.
// O(references log num_blocks). REQUIRES: num_blocks > 0.
uint64_t BeladyHits(std::span<const std::vector<uint32_t>> prompts, uint32_t num_blocks);

}  // namespace kvasir
