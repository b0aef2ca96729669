// Random bytes from the operating system, for secrets.
#pragma once

#include <cstdint>
#include <span>

#include "kvasir/status.h"

namespace kvasir {

// Fills `bytes` from the system's generator. kIoError when the system refuses.
Status FillRandom(std::span<uint8_t> bytes);

}  // namespace kvasir
