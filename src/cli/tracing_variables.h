// OpenTelemetry's variables: where spans go where no flag says it, and what goes with them.
#pragma once

#include "server/server.h"

namespace kvasir::cli {

// Takes what the variables say (docs/traces.md). They may be meant for other programs, so what
// cannot be used is a warning.
void UseTracingVariables(ServerOptions* options);

}  // namespace kvasir::cli
