// The flags of KV events.
#pragma once

#include <string>
#include <vector>

#include "cli/args.h"
#include "kvasir/engine_options.h"
#include "kvasir/kv_events.h"
#include "kvasir/status.h"
#include "server/server.h"

namespace kvasir::cli {

std::vector<Flag> EventFlags();  // of the server and of plan

// Reads them, --kv-events-tenant apart. kInvalidArgument names the flag.
Status ReadEventFlags(const Args& args, EngineOptions* options);
// Reads whose blocks are published. kInvalidArgument: the server has several tenants and
// --kv-events-tenant names none of them.
Status ReadEventTenant(const Args& args, const ServerOptions& server, EngineOptions* options);

// Returns the line about them at a start, and one that warns where others can reach them.
std::string EventLines(const KvEventsOptions& options, const KvEventsStats& stats);

}  // namespace kvasir::cli
