// kvasir eval --retention: what a sequence loses that drops tokens.
#pragma once

#include "cli/args.h"
#include "kvasir/engine.h"

namespace kvasir::cli {

// Runs eval for each --retention, and prints the report. `engine`: of the other flags.
Result<int> RunRetentionEval(const Args& args, EngineOptions engine);

}  // namespace kvasir::cli
