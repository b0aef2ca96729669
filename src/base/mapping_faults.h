// Faults of file mappings: reads of a page that the file has lost (it was truncated) or that the
// disk cannot deliver. The system raises SIGBUS, which by default ends the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace kvasir {

// Handles SIGBUS from now on: a fault inside a mapping added here replaces the lost page by zeros
// and is counted, and the read continues. Users of a mapping check the count before they use
// results computed from it. All other faults go to the previous handler. A process calls this once,
// at its start; a library must not call it.
void CatchMappingFaults();

// A row of the table of mappings. The table has a fixed size and no lock: the handler reads it.
enum class MappingId : uint32_t {};

// Adds a mapping to the table; absent when the table is full. Thread-safe. O(mappings).
std::optional<MappingId> AddMapping(std::span<const std::byte> bytes);
// Ends what AddMapping began. REQUIRES: no thread reads the bytes any more. Thread-safe.
void RemoveMapping(MappingId id);
// Returns the number of lost pages of the mapping. Includes the reads of all threads that the
// caller has waited for. Thread-safe.
uint32_t MappingFaults(MappingId id);

}  // namespace kvasir
