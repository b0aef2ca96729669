// The commands of the binary.
#include <cstdio>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/command.h"

namespace kvasir::cli {
namespace {

Result<int> RunCompletions(const Args& args) {
  const std::vector<std::string> operands = args.List(kOperands);
  KV_ASSIGN(const std::string script,
            CompletionsOf(AllCommands(), operands.size() == 1 ? operands[0] : ""));
  std::fputs(script.c_str(), stdout);
  return kExitDone;
}

// Returns the command whose scripts have all commands.
Command CompletionsCommand() {
  return {"completions",
          "writes the completions of commands and flags for a shell: bash, zsh or fish",
          "completions bash > ~/.local/share/bash-completion/completions/kvasir",
          {},
          RunCompletions,
          "zsh reads a file _kvasir in a folder of its fpath, fish\n"
          "~/.config/fish/completions/kvasir.fish.",
          2,
          {},
          "bash zsh fish",
          "bash | zsh | fish"};
}

}  // namespace

std::vector<Command> AllCommands() {
  // kvasir --help has titles before some of them (command.cc).
  return {RunCommand(),       ChatCommand(),    ServeCommand(),    PsCommand(),
          TranslateCommand(), ListCommand(),    PullCommand(),     ShowCommand(),
          RmCommand(),        ModelsCommand(),  PlanCommand(),     BenchCommand(),
          EvalCommand(),      LogitsCommand(),  SelftestCommand(), InfoCommand(),
          SessionsCommand(),  InspectCommand(), FsckCommand(),     BackupCommand(),
          RestoreCommand(),   KeyCommand(),     HealthCommand(),   CompletionsCommand()};
}

}  // namespace kvasir::cli
