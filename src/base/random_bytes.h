// Random bytes of the operating system, for what nobody may guess.
#pragma once

#include <cstdint>
#include <span>

#include "kvasir/status.h"

namespace kvasir {

// Fills `bytes` from the system's generator. kIoError when the system refuses.
Status FillRandom(std::span<uint8_t> bytes);

}  // namespace kvasir
