// kvasir: finds the command, reads its flags, runs it, says what went wrong.
#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <exception>
#include <span>
#include <string_view>

#include "base/result.h"
#include "cli/build_info.h"
#include "cli/command.h"

namespace kvasir::cli {
namespace {

// Commands of parts that are not there yet, and the part.
constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kAbsentCommands = {{
    {"inspect", "the disk tier"},
    {"fsck", "the disk tier"},
    {"replay", "trace replay"},
    {"eval", "evaluation"},
    {"pull", "downloading models"},
    {"top", "the live view"},
}};

std::vector<Command> AllCommands() {
  return {ServeCommand(),    ChatCommand(), RunCommand(),   LogitsCommand(),
          SelftestCommand(), PlanCommand(), BenchCommand(), InfoCommand()};
}

Result<int> RunOne(const Command& command, std::span<char* const> arguments) {
  KV_ASSIGN(const Args args, ParseArgs(command.name, command.flags, arguments));
  if (args.Has("help")) {
    fmt::print("{}", HelpOf(command));
    return kExitDone;
  }
  return command.run(args);
}

int Main(std::span<char* const> arguments) {
  const std::vector<Command> commands = AllCommands();
  const std::string_view name = arguments.empty() ? "" : std::string_view(arguments[0]);
  if (name.empty()) {
    fmt::print(stderr, "{}", HelpOf(commands));
    return kExitWrongInput;
  }
  if (name == "--help" || name == "-h" || name == "help") {
    fmt::print("{}", HelpOf(commands));
    return kExitDone;
  }
  if (name == "--version") {
    fmt::print("kvasir {} ({})\n", kVersion, kCommit);
    return kExitDone;
  }
  for (const Command& command : commands) {
    if (command.name != name) continue;
    const Result<int> result = RunOne(command, arguments.subspan(1));
    if (result) return *result;
    if (result.error().code != Code::kCancelled) {
      fmt::print(stderr, "kvasir {}: {}\n", name, result.error().message);
    }
    return ExitStatus(result.error().code);
  }
  for (const auto& [absent, part] : kAbsentCommands) {
    if (absent != name) continue;
    fmt::print(stderr,
               "kvasir {}: {} is not in this version, nor is this command; 'kvasir --help' lists "
               "the others\n",
               name, part);
    return kExitWrongInput;
  }
  fmt::print(stderr, "kvasir: unknown command '{}'; 'kvasir --help' lists the commands\n", name);
  return kExitWrongInput;
}

}  // namespace
}  // namespace kvasir::cli

int main(int argc, char** argv) {
  try {
    const int status =
        kvasir::cli::Main(std::span<char* const>(argv, static_cast<size_t>(argc)).subspan(1));
    if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
    std::fputs("kvasir: standard output cannot be written; is the disk full?\n", stderr);
  } catch (const std::exception& error) {  // of a library: memory that is not there, a full disk
    fmt::print(stderr, "kvasir: {}\n", error.what());
  }
  return kvasir::cli::kExitFailed;
}
