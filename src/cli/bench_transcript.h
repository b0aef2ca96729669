// kvasir bench --transcript: how much faster drafts make known answers.
#pragma once

#include <vector>

#include "cli/args.h"
#include "kvasir/bench.h"
#include "kvasir/status.h"

namespace kvasir::cli {

// Returns the flags that only bench --transcript uses.
std::vector<Flag> TranscriptFlags();
// Measures and prints what --transcript asks for; false: the flag was not given. `options`: what
// the command line says without these flags.
Result<bool> ReplayTranscripts(const Args& args, const BenchOptions& options);

}  // namespace kvasir::cli
