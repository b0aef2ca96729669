// What an engine may take of this machine.
#pragma once

#include "base/memory_limit.h"
#include "cli/args.h"
#include "kvasir/engine_options.h"

namespace kvasir::cli {

// Lowers the defaults of --kv-memory, --request-memory, --session-memory, --grammar-memory and,
// with a draft model, --draft-kv-memory, and what the disk tier takes, as far as flags leave them
// open, where the whole plan would be more than 60% of `limit`. What flags name stays as it is: a
// plan of more than 60% is warned of, one of more than `limit` is kInvalidArgument, which names the
// largest --kv-memory that fits, unless
// --allow-overcommit is given. Does nothing where the plan cannot be made: loading says why.
Status FitToMachine(const Args& args, const MemoryLimit& limit, EngineOptions* options);

// Warns of more --threads than the processors, or their time, that the process may use.
void WarnOfThreads(const EngineOptions& options);

}  // namespace kvasir::cli
