// Flags of llama-server, as this program's.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/args.h"
#include "kvasir/status.h"

namespace kvasir::cli {

struct RewrittenArguments {
  std::vector<std::string> arguments;
  std::vector<std::string> ignored;            // as they were given: "-ngl 99"
  std::map<std::string, std::string> written;  // flags that an alias stood for: {"ctx-size", "-c"}
};

// Rewrites llama-server's flags among the arguments of a command: -c 4096 becomes --ctx-size 4096
// where the command has that flag; what only concerns llama-server's own computing is left out and
// listed as ignored; flags that are not named there stay as they are. docs/from-llama-server.md
// lists them all.
//
// kInvalidArgument: a value is missing or has no counterpart. kUnsupported names a flag whose
// effect is not available, and what to do instead.
Result<RewrittenArguments> RewriteArguments(std::string_view command, std::span<const Flag> flags,
                                            std::span<char* const> arguments);

// Returns the flag or alias that most resembles the unknown argument, with its dashes; absent: none
// does.
std::optional<std::string> NearestFlag(std::string_view argument, std::span<const Flag> flags);

}  // namespace kvasir::cli
