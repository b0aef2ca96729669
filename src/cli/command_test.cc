#include "cli/command.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

namespace kvasir::cli {
namespace {

Result<int> RunNothing(const Args&) { return kExitDone; }

Command Greet() {
  return {"greet",
          "says hello",
          "greet --name Anna",
          {{"name", "TEXT", "who"},
           {"p", "N", "times"},
           {"later", "", "not there yet", FlagKind::kSwitch, "the calendar"}},
          RunNothing};
}

TEST(Command, ExitStatusesSayWhoMustAct) {
  for (const Code code :
       {Code::kInvalidArgument, Code::kNotFound, Code::kCorruption, Code::kUnsupported}) {
    EXPECT_EQ(ExitStatus(code), 2) << static_cast<int>(code);
  }
  for (const Code code : {Code::kExhausted, Code::kIoError, Code::kDeadlineExceeded,
                          Code::kUnavailable, Code::kPermissionDenied, Code::kModelChanged}) {
    EXPECT_EQ(ExitStatus(code), 1) << static_cast<int>(code);
  }
  EXPECT_EQ(ExitStatus(Code::kCancelled), 130);
}

TEST(Command, HelpListsTheFlagsThatAreThereAndHelpItself) {
  Command command = Greet();
  const std::string help =
      "kvasir greet: says hello\n\nUsage: kvasir greet [FLAGS]\n\nExample:\n"
      "  kvasir greet --name Anna\n\nFlags:\n"
      "  --name TEXT             who\n"
      "  -p N                    times\n"
      "  --help                  this text\n";
  EXPECT_EQ(HelpOf(command), help);
  command.notes = "Be kind.";
  EXPECT_EQ(HelpOf(command), help + "\nBe kind.\n");
  command.max_operands = 1;
  command.operands = "[NAME]";
  EXPECT_NE(HelpOf(command).find("\n\nUsage: kvasir greet [FLAGS] [NAME]\n\nExample:"), help.npos);
}

TEST(Command, HelpShowsFlagsInGroups) {
  Command command = Greet();
  command.flags.push_back({"loud", "", "in capitals", FlagKind::kSwitch});
  command.groups = {{"How", "p loud"}, {"Whom", "name"}};
  EXPECT_EQ(HelpOf(command),
            "kvasir greet: says hello\n\nUsage: kvasir greet [FLAGS]\n\nExample:\n"
            "  kvasir greet --name Anna\n\nFlags:\n"
            "\n How\n"
            "  -p N                    times\n"
            "  --loud                  in capitals\n"
            "\n Whom\n"
            "  --name TEXT             who\n"
            "\n Help\n"
            "  --help                  this text\n");
}

TEST(CommandDeathTest, EachFlagIsInOneGroup) {
  Command command = Greet();
  for (const char* names : {"name", "name p p", "name p later", "name p other"}) {
    command.groups = {{"All", names}};
    EXPECT_DEATH(HelpOf(command), "seen") << names;
  }
}

TEST(Command, FlagsThatFewNeedHaveAPage) {
  Command command = Greet();
  EXPECT_EQ(HelpOf(command).find("--help-expert"), std::string::npos);
  command.flags.push_back({"pitch", "HZ", "of the voice"});
  command.flags.back().is_expert = true;
  command.groups = {{"All", "name p"}};
  const std::string usual = HelpOf(command);
  EXPECT_EQ(usual.find("of the voice"), usual.npos);
  EXPECT_NE(usual.find("\n  --help-expert           flags that few need: --pitch\n"), usual.npos)
      << usual;
  EXPECT_EQ(HelpOf(command, HelpPage::kExpert),
            "kvasir greet: flags that few need; their defaults suit most\n\nFlags:\n"
            "  --pitch HZ              of the voice\n"
            "  --help                  all other flags\n");
}

TEST(Command, ALongFlagHasItsTextOnTheNextLine) {
  Command command = Greet();
  command.flags = {{"twenty-letters-wide", "N", "a"},
                   {"twentyone-letters-wide", "", "b"},
                   {"name-of-19-letters-", "N", "c"}};
  const std::string help = HelpOf(command);
  EXPECT_NE(help.find("\n  --twenty-letters-wide N\n" + std::string(26, ' ') + "a\n"), help.npos)
      << help;
  EXPECT_NE(help.find("\n  --twentyone-letters-wide\n" + std::string(26, ' ') + "b\n"), help.npos)
      << help;
  // Two spaces at least.
  EXPECT_NE(help.find("\n  --name-of-19-letters- N\n" + std::string(26, ' ') + "c\n"), help.npos)
      << help;
}

TEST(Command, TextIsWrappedAt100ColumnsAndKeepsItsWords) {
  std::string words;
  for (int i = 0; i < 60; ++i) words += (i == 0 ? "" : " ") + std::string(size_t(i % 13) + 1, 'w');
  Command command = Greet();
  command.purpose = words;
  command.notes = words + " " + std::string(120, 'x');  // a word is never cut
  command.flags = {{"name", "TEXT", words}};
  std::istringstream lines(HelpOf(command));
  std::string joined;
  size_t longest = 0;
  for (std::string line; std::getline(lines, line);) {
    EXPECT_FALSE(line.ends_with(' ')) << line;
    if (line != std::string(120, 'x')) longest = std::max(longest, line.size());
    joined += line.substr(std::min(line.find_first_not_of(' '), line.size())) + ' ';
  }
  EXPECT_LE(longest, 100U);
  EXPECT_GT(longest, 90U);
  const auto first = joined.find(words);
  EXPECT_NE(first, joined.npos);
  EXPECT_NE(joined.find("--name TEXT             " + words), joined.npos);
  EXPECT_NE(joined.rfind(words + " " + std::string(120, 'x')), joined.npos);
}

TEST(Command, TheHelpOfAllCommandsHasAnExampleOfEach) {
  Command other = Greet();
  other.name = "part";
  other.purpose = "says goodbye";
  other.example = "part";
  const std::string help = HelpOf(std::vector<Command>{Greet(), other});
  EXPECT_NE(help.find("Commands:\n"
                      "  greet        says hello\n               kvasir greet --name Anna\n"
                      "  part         says goodbye\n               kvasir part\n"),
            help.npos)
      << help;
  EXPECT_NE(help.find("Exit status: 0 done, 1 the work failed, 2 arguments or input are wrong, "
                      "130 interrupted.\n"),
            help.npos);
  std::string one_line = help;
  std::ranges::replace(one_line, '\n', ' ');
  EXPECT_NE(one_line.find("take --model (a Hugging Face folder"), help.npos) << help;
}

}  // namespace
}  // namespace kvasir::cli
