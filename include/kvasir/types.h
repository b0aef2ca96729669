// Plain types that every part shares.
#pragma once

#include <cstdint>

namespace kvasir {

using TokenId = int32_t;

}  // namespace kvasir
