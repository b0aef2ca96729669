// Belady's optimum: the most hits that any policy can get, even if it knows the future.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvasir {

// Returns the hits of L. A. Belady's MIN ("A study of replacement algorithms for a virtual-storage
// computer", IBM Systems Journal, 1966) on the references of `prompts`, one after the other, in a
// cache of `num_blocks`: each referenced block enters, and the block whose next use is furthest
// away, or that is never used again, leaves. A prefix cache cannot get more hits: it drops leaves
// first, and keeps all blocks of a prompt while the prompt runs. O(references log num_blocks).
// REQUIRES: num_blocks > 0.
uint64_t BeladyHits(std::span<const std::vector<uint32_t>> prompts, uint32_t num_blocks);

}  // namespace kvasir
