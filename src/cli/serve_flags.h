// The flags of kvasir serve, and ServerOptions made from them.
#pragma once

#include <vector>

#include "cli/args.h"
#include "cli/command.h"
#include "server/server.h"

namespace kvasir::cli {

std::vector<Flag> ServeFlags();
// Returns the groups in which --help shows them.
std::vector<FlagGroup> ServeGroups();

// Reads the flags that concern the server alone. Reads the files of --api-key-file and --keys.
Result<ServerOptions> ServerOptionsOf(const Args& args);

}  // namespace kvasir::cli
