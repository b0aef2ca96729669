// Command: one verb of the binary. Each has a file of its own; main.cc lists them.
#pragma once

#include <string>
#include <vector>

#include "cli/args.h"
#include "kvasir/status.h"

namespace kvasir::cli {

struct Command {
  std::string name;
  std::string purpose;  // one line
  std::string example;  // what a newcomer types first, without "kvasir"
  std::vector<Flag> flags;
  // Returns the exit status of work that was done, or why it was not (see ExitStatus).
  Result<int> (*run)(const Args& args);
  std::string notes;  // below the flags in --help; "": none
};

Command ServeCommand();
Command ChatCommand();
Command RunCommand();
Command LogitsCommand();
Command SelftestCommand();
Command PlanCommand();
Command BenchCommand();
Command EvalCommand();
Command InfoCommand();
Command InspectCommand();

inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitWrongInput = 2;
inline constexpr int kExitInterrupted = 130;

// The one table from codes to exit status.
int ExitStatus(Code code);

std::string HelpOf(const Command& command);
std::string HelpOf(const std::vector<Command>& commands);

}  // namespace kvasir::cli
