// Parts, which stand in base/parts.h.
#pragma once

#include "base/parts.h"  // IWYU pragma: export
