// kvasir eval --spans: what spans cost this model.
#pragma once

#include "cli/args.h"
#include "cli/command.h"
#include "kvasir/status.h"

namespace kvasir::cli {

Flag EvalSpansFlag();
// Measures and prints. REQUIRES: the flag is given.
Result<int> RunEvalSpans(const Args& args);

}  // namespace kvasir::cli
