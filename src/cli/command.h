// Command: one verb of the binary. Each has its own source file; commands.cc lists them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
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
  std::string words = {};     // that the first operand may be, separated by spaces
  std::string operands = {};  // as the usage line names them: "[MODEL] [TEXT]"
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
Command ListCommand();
Command ShowCommand();
Command RmCommand();
Command PsCommand();
Command ModelsCommand();
Command KeyCommand();
Command SessionsCommand();
Command BackupCommand();
Command RestoreCommand();
Command HealthCommand();

// Returns all of them and `completions`, in the order of kvasir --help.
std::vector<Command> AllCommands();

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

// Returns the command with its flags in groups: first `everyday`, in order, then the others by
// their subjects.
Command Grouped(Command command, const std::string& everyday);

// Returns the completions of all commands and flags, as a script of `shell`: bash, zsh or fish.
// kInvalidArgument: another one.
Result<std::string> CompletionsOf(const std::vector<Command>& commands, std::string_view shell);

}  // namespace kvasir::cli
