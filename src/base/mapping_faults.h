// Faults of file mappings: what becomes of a read whose file has lost the page (it was cut shorter)
// or whose disk cannot give it. The system raises SIGBUS, which ends a process that does not
// expect it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace kvasir {

// Handles SIGBUS from here on: a fault inside a mapping of ours puts a page of zeros in the place
// of the lost one and is counted, and the read goes on. Who uses the mapping asks for the count
// before it uses what it has computed. Every other fault is left to the handler of before. A
// process calls this once, at its start; a library leaves the decision to the process.
void CatchMappingFaults();

// A row of the table of mappings. The table has a fixed size and no lock: the handler reads it.
enum class MappingId : uint32_t {};

// Absent: the table is full. Thread-safe. O(mappings).
std::optional<MappingId> AddMapping(std::span<const std::byte> bytes);
// The bytes are not read any more. Thread-safe.
void RemoveMapping(MappingId id);
// Pages of the mapping that were lost. Knows of all reads of a thread that the caller has waited
// for. Thread-safe.
uint32_t MappingFaults(MappingId id);

}  // namespace kvasir
