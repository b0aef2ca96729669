// Plain types that all parts share.
#pragma once

#include <cstdint>

namespace kvasir {

using TokenId = int32_t;

}  // namespace kvasir
