// With a sanitizer the commands are not compiled (CMakeLists.txt).
#ifndef KVASIR_SANITIZED
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/command.h"
#include "cli/flag_aliases.h"

namespace kvasir::cli {
namespace {

// Flags of one command and words of llama-server, which others take or refuse otherwise
// (tests/cli_llama_flags_test.py).
const std::set<std::string> kLlamaWords = {
    "n", "p", "ignore-eos", "verbose", "tags", "slot-save-path", "reasoning-format", "pooling"};

// Reads the arguments of a command as main.cc does.
Result<Args> ReadArguments(const Command& command, std::vector<std::string> words) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  KV_ASSIGN(RewrittenArguments rewritten, RewriteArguments(command.name, command.flags, arguments));
  return ParseArgs(command.name, command.flags, std::move(rewritten.arguments),
                   command.max_operands);
}

TEST(Commands, RefuseEachFlagThatOnlyOthersHaveByItsName) {
  const std::vector<Command> commands = AllCommands();
  std::set<std::string> every;
  for (const Command& command : commands) {
    for (const Flag& flag : command.flags) {
      if (!flag.absent_part) every.insert(flag.name);
    }
  }
  size_t tried = 0;
  for (const Command& command : commands) {
    for (const std::string& name : every) {
      const bool has_it =
          std::ranges::find(command.flags, name, &Flag::name) != command.flags.end();
      if (has_it || kLlamaWords.contains(name)) continue;
      ++tried;
      const std::string flag = Dashed(name), what = command.name + " " + flag;
      const Result<Args> args = ReadArguments(command, {flag, "1"});
      ASSERT_FALSE(args) << what;
      const std::string text = args.error().text();
      EXPECT_EQ(ExitStatus(args.error().code), kExitWrongInput) << what;
      EXPECT_NE(text.find("'" + flag + "'"), text.npos) << what << ": " << text;
      EXPECT_NE(text.find("'kvasir " + command.name + " --help'"), text.npos)
          << what << ": " << text;
    }
  }
  EXPECT_EQ(commands.size(), 24U);
  EXPECT_GT(tried, 3000U);
}

}  // namespace
}  // namespace kvasir::cli
#endif
