// KeepOutOfDumps: memory whose bytes a core dump must not show.
#pragma once

#include <cstddef>
#include <span>

namespace kvasir {

// Keeps the pages of these bytes out of core dumps from now on, until they are unmapped. Does
// nothing where the system refuses. REQUIRES: the bytes begin a page.
void KeepOutOfDumps(std::span<const std::byte> bytes);

}  // namespace kvasir
