// The flags of adapters.
#pragma once

#include <vector>

#include "cli/args.h"
#include "kvasir/engine_options.h"
#include "kvasir/status.h"

namespace kvasir::cli {

std::vector<Flag> AdapterFlags();       // of all commands that run a model
Flag LoraDirFlag();                     // of the server and of plan
std::vector<Flag> ServeAdapterFlags();  // of the server, with LoraDirFlag

// Reads them. kInvalidArgument names the flag.
Status ReadAdapterFlags(const Args& args, EngineOptions* options);
// Reads those of the server, after ReadAdapterFlags: requests that say nothing of adapters get none
// that has a name, and with --lora-init-without-apply none at all; --lora-dir makes room for
// others.
void ReadServeAdapterFlags(const Args& args, EngineOptions* options);

}  // namespace kvasir::cli
