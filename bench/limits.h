// The loops that bench/limits times: reading memory, and one instruction over and over.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kvasir {

// run(data, bytes): reads all bytes (a multiple of 4 KiB, 64-byte aligned); the result depends on
// every byte.
struct Reader {
  const char* name;
  uint64_t (*run)(const std::byte* data, uint64_t bytes);
};
std::vector<Reader> Readers();

// run(rounds): the instruction in loops of independent chains, so that latency is hidden.
struct Peak {
  std::string name;
  double operations_per_round;
  void (*run)(uint64_t rounds);
};
// Returns the loops that this CPU (and, for AMX, this kernel) can run. Requests the AMX state.
std::vector<Peak> Peaks();

// Tells the core that it waits for another.
void Pause();

}  // namespace kvasir
