// Command: one verb of the binary. Each has its own source file; main.cc lists them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/args.h"
#include "kvasir/status.h"

namespace kvasir::cli {

// A part of a command's flags under one title in --help.
struct FlagGroup {
  std::string title;
  std::string names;  // of its flags, in order, separated by spaces
};

struct Command {
  std::string name;
  std::string purpose;  // one line
  std::string example;  // an example without "kvasir"
  std::vector<Flag> flags;
  // Returns the exit status of finished work, or the error that stopped it (see ExitStatus).
  Result<int> (*run)(const Args& args);
  std::string notes = {};   // text below the flags in --help
  size_t max_operands = 0;  // arguments without a flag
  // Each flag that --help lists is in one group; none: they stand in one list.
  std::vector<FlagGroup> groups = {};
};

Command ServeCommand();
Command ChatCommand();
Command RunCommand();
Command LogitsCommand();
Command TranslateCommand();
Command SelftestCommand();
Command PlanCommand();
Command BenchCommand();
Command EvalCommand();
Command InfoCommand();
Command FsckCommand();
Command InspectCommand();
Command PullCommand();
Command ModelsCommand();
Command KeyCommand();
Command SessionsCommand();

inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitWrongInput = 2;
inline constexpr int kExitInterrupted = 130;

// Returns the exit status for an error code.
int ExitStatus(Code code);

// Pages of help: --help, and --help-expert with the flags that few need.
enum class HelpPage : uint8_t { kUsual, kExpert };
std::string HelpOf(const Command& command, HelpPage page = HelpPage::kUsual);
std::string HelpOf(const std::vector<Command>& commands);

}  // namespace kvasir::cli
