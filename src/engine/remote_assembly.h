// What an engine's remote tier is to be, by its options.
#pragma once

#include <optional>

#include "engine/assembly.h"
#include "kvasir/engine_options.h"
#include "remote/remote_tier_options.h"

namespace kvasir {

// Absent where no remote tier is wanted. kInvalidArgument: an option is wrong, or does not fit the
// model.
Result<std::optional<RemoteTierOptions>> RemoteOptionsFor(const Assembly& a,
                                                          const EngineOptions& options);

}  // namespace kvasir
