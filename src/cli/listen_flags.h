// Flags that say where a server listens, and whether it speaks https there.
#pragma once

#include <vector>

#include "cli/args.h"
#include "kvasir/status.h"
#include "server/server.h"

namespace kvasir::cli {

// --host, --port, --tls-cert, --tls-key.
std::vector<Flag> ListenFlags();
// Reads the files of --tls-cert and --tls-key, where they are given. Errors: those of
// TlsFiles::Open; kInvalidArgument: one is given without the other.
Status ReadTlsFlags(const Args& args, ServerOptions* options);

}  // namespace kvasir::cli
