// kvasir: finds the command, reads its flags, runs it and reports errors.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <malloc.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <span>
#include <string_view>

#include "base/log.h"
#include "base/mapping_faults.h"
#include "base/nearest.h"
#include "base/result.h"
#include "cli/build_info.h"
#include "cli/command.h"
#include "cli/flag_aliases.h"

namespace kvasir::cli {
namespace {

// Commands of parts that do not exist yet, and the part.
constexpr std::array<std::pair<std::string_view, std::string_view>, 2> kAbsentCommands = {{
    {"replay", "trace replay"},
    {"top", "the live view"},
}};

// Names a command that is not there, and the nearest one that is.
std::string UnknownCommand(const std::vector<Command>& commands, std::string_view name) {
  if (name.starts_with('-')) {
    const auto nearest = Nearest(name, std::vector<std::string>{"--help", "--version"});
    return fmt::format(
        "unknown flag '{}'{}; the flags of a command come after it; 'kvasir --help' "
        "lists the commands",
        name, nearest ? fmt::format(" (did you mean {}?)", *nearest) : "");
  }
  std::vector<std::string> names;
  for (const Command& command : commands) names.push_back(command.name);
  const auto nearest = Nearest(name, names);
  return fmt::format("unknown command '{}'{}; 'kvasir --help' lists the commands", name,
                     nearest ? fmt::format(" (did you mean {}?)", *nearest) : "");
}

// Writes to standard error. Ignores failures: the exit status shows the error too.
template <typename... Values>
void Complain(fmt::format_string<Values...> format, Values&&... values) noexcept {
  try {
    std::fputs(fmt::format(format, std::forward<Values>(values)...).c_str(), stderr);
  } catch (...) {
    std::fputs("kvasir: out of memory, also for the message about an error\n", stderr);
  }
}

// Turns the library's name of a field ("ctx_size") into the flag ("--ctx-size").
Error NameFlag(Error error, const Command& command, const Args& args) {
  if (!error.field) return error;
  std::string name = *error.field;
  std::replace(name.begin(), name.end(), '_', '-');
  if (name == "prompt" && args.Has("ids")) name = "ids";
  if (name.starts_with("cache.")) name.erase(0, 6);
  if (name == "retention.exact-tokens") {
    name = "exact-tokens";
  } else if (name.starts_with("retention.")) {  // a number of that flag
    error.message = name.substr(10) + " " + error.message;
    name = "retention";
  }
  const auto flag = std::ranges::find_if(command.flags, [&](const Flag& one) {
    return one.field ? one.field == error.field : one.name == name;
  });
  if (flag != command.flags.end()) error.field = args.Written(flag->name);
  return error;
}

Result<int> RunOne(const Command& command, std::span<char* const> arguments) {
  KV_ASSIGN(RewrittenArguments rewritten, RewriteArguments(command.name, command.flags, arguments));
  if (!rewritten.ignored.empty()) {
    Complain("kvasir {}: ignored, since no answer here depends on it: {}\n", command.name,
             fmt::join(rewritten.ignored, ", "));
  }
  KV_ASSIGN(Args args, ParseArgs(command.name, command.flags, std::move(rewritten.arguments),
                                 command.max_operands));
  args.SetWritten(std::move(rewritten.written));
  if (args.Has("help") || args.Has("help-expert")) {
    std::fputs(HelpOf(command, args.Has("help") ? HelpPage::kUsual : HelpPage::kExpert).c_str(),
               stdout);
    return kExitDone;
  }
  Result<int> status = command.run(args);
  if (!status) return tl::unexpected(NameFlag(status.error(), command, args));
  return status;
}

// kvasir help [COMMAND]
int Help(const std::vector<Command>& commands, std::span<char* const> arguments) {
  if (arguments.empty()) {
    std::fputs(HelpOf(commands).c_str(), stdout);
    return kExitDone;
  }
  for (const Command& command : commands) {
    if (command.name != std::string_view(arguments[0])) continue;
    std::fputs(HelpOf(command).c_str(), stdout);
    return kExitDone;
  }
  Complain("kvasir help: {}\n", UnknownCommand(commands, arguments[0]));
  return kExitWrongInput;
}

int Main(std::span<char* const> arguments) {
  const std::vector<Command> commands = AllCommands();
  const std::string_view name = arguments.empty() ? "" : std::string_view(arguments[0]);
  if (name.empty()) {
    Complain("{}", HelpOf(commands));
    return kExitWrongInput;
  }
  if (name == "--help" || name == "-h" || name == "help") {
    return Help(commands, arguments.subspan(1));
  }
  if (name == "--version" || name == "-v" || name == "version") {
    fmt::print("kvasir {} ({})\n", kVersion, kCommit);
    return kExitDone;
  }
  for (const Command& command : commands) {
    if (command.name != name) continue;
    const Result<int> result = RunOne(command, arguments.subspan(1));
    if (result) return *result;
    if (result.error().code != Code::kCancelled) {
      Complain("kvasir {}: {}\n", name, result.error().text());
    }
    return ExitStatus(result.error().code);
  }
  for (const auto& [absent, part] : kAbsentCommands) {
    if (absent != name) continue;
    Complain("kvasir {}: {} is not available in this version; 'kvasir --help' lists the commands\n",
             name, part);
    return kExitWrongInput;
  }
  Complain("kvasir: {}\n", UnknownCommand(commands, name));
  return kExitWrongInput;
}

// Ends the process if a library throws while it initialises constants, before main can catch it.
[[noreturn]] void EndBeforeMain() {
  std::fputs("kvasir: the system refuses the memory to start; raise its limit (ulimit -v)\n",
             stderr);
  std::_Exit(kExitFailed);
}
struct TerminateBeforeMain {
  const std::terminate_handler usual = std::set_terminate(EndBeforeMain);
};
__attribute__((init_priority(101))) const TerminateBeforeMain before_main;

// Keeps malloc to one arena where `ulimit -v` is set: each other one reserves 64 MiB of addresses,
// which the plan does not count.
void LimitArenas() {
  rlimit limit;
  const bool is_limited = getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  if (is_limited) mallopt(M_ARENA_MAX, 1);
}

// Runs main and handles exceptions of libraries: refused memory, a full disk.
int Guarded(std::span<char* const> arguments) noexcept {
  LimitArenas();
  try {
    const int status = Main(arguments);
    if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
    Complain("kvasir: standard output cannot be written; is the disk full?\n");
  } catch (const std::bad_alloc&) {
    Complain(
        "kvasir: the system refuses more memory; free some, raise its limit (ulimit -v) or ask for "
        "less with --kv-memory and --request-memory\n");
  } catch (const std::exception& error) {
    Complain("kvasir: {}\n", error.what());
  } catch (...) {
    Complain("kvasir: an unknown error\n");
  }
  return kExitFailed;
}

}  // namespace
}  // namespace kvasir::cli

int main(int argc, char** argv) {
  std::set_terminate(kvasir::cli::before_main.usual);
  if (!kvasir::FillStandardDescriptors()) {
    kvasir::cli::Complain("kvasir: cannot open /dev/null in the place of a closed descriptor: {}\n",
                          std::strerror(errno));
    return kvasir::cli::kExitFailed;
  }
  kvasir::CatchMappingFaults();   // a truncated model file is an error, not a crash
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow makes the write fail
  const auto count = static_cast<size_t>(argc);
  return kvasir::cli::Guarded(std::span<char* const>(argv, count).subspan(count > 0 ? 1 : 0));
}
