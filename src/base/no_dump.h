// KeepOutOfDumps: memory whose bytes a core dump must not show.
#pragma once

#include <cstddef>
#include <span>

namespace kvasir {

// A core dump leaves out the pages of these bytes from now on, until they are unmapped. Does
// nothing where the system refuses. REQUIRES: the bytes begin a page.
void KeepOutOfDumps(std::span<const std::byte> bytes);

}  // namespace kvasir
