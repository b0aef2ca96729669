#include <gtest/gtest.h>

#include <string>

#include "cli/command.h"

namespace kvasir::cli {
namespace {

std::vector<Command> FewCommands() {
  const auto run = [](const Args&) -> Result<int> { return kExitDone; };
  return {{"serve",
           "the server's work",
           "serve",
           {{"disk", "DIR", "a [folder]: it's 'there'"},
            {"config", "F.json", "flags"},
            {"cache", "prefix|none", "mode"},
            {"port", "N", "a number"},
            {"stop", "TEXT", "words", FlagKind::kList},
            {"resume", "ID", "a session", FlagKind::kOptional},
            {"trace", "F", "later", FlagKind::kValue, "tracing"},
            {"pin", "", "cores", FlagKind::kSwitch, {}, {}, true},
            {.name = "level", .value = "L", .help = "how much", .choices = "low high"}},
           run},
          {"show", "a model", "show M", {}, run, "", 1, {}, {}, "[MODEL]"},
          {"key", "makes keys", "key X", {{"p", "N", "count"}}, run, "", 2, {}, "new old"}};
}

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Completions, OfBashHaveAllCommandsFlagsAndValues) {
  const std::string bash = *CompletionsOf(FewCommands(), "bash");
  EXPECT_TRUE(Has(bash, "-W 'serve show key help --help --version'")) << bash;
  EXPECT_TRUE(Has(bash,
                  "names='--disk --config --cache --port --stop --resume --pin --level "
                  "--help-expert --help' operands=''\n"))
      << bash;
  EXPECT_TRUE(Has(bash, "names='-p --help' operands='new old'")) << bash;
  EXPECT_TRUE(Has(bash, "--disk) _kvasir_words -d;")) << bash;
  EXPECT_TRUE(Has(bash, "--config) _kvasir_words -f;")) << bash;
  EXPECT_TRUE(Has(bash, "--cache) _kvasir_words -W 'prefix none';")) << bash;
  EXPECT_TRUE(Has(bash, "--level) _kvasir_words -W 'low high';")) << bash;
  EXPECT_TRUE(Has(bash, "names='--help' operands='' models=1\n")) << bash;
  EXPECT_TRUE(Has(bash, "--port) COMPREPLY=();")) << bash;
  EXPECT_FALSE(Has(bash, "--resume)")) << bash;  // its value may be left out
  EXPECT_FALSE(Has(bash, "trace")) << bash;
}

TEST(Completions, OfZshQuoteTheirTexts) {
  const std::string zsh = *CompletionsOf(FewCommands(), "zsh");
  EXPECT_TRUE(zsh.starts_with("#compdef kvasir\n"));
  EXPECT_TRUE(Has(zsh, R"('serve:the server'\''s work')")) << zsh;
  EXPECT_TRUE(Has(zsh, R"('--disk[a \[folder\]\: it'\''s '\''there'\'']:folder:_files -/')"))
      << zsh;
  EXPECT_TRUE(Has(zsh, "'--cache[mode]:value:(prefix none)'")) << zsh;
  EXPECT_TRUE(Has(zsh, "'--level[how much]:value:(low high)'")) << zsh;
  EXPECT_TRUE(Has(zsh, "'*:model:_kvasir_models'\n")) << zsh;
  EXPECT_TRUE(Has(zsh, "'*--stop[words]:TEXT: '")) << zsh;
  EXPECT_TRUE(Has(zsh, "'--resume[a session]::ID: '")) << zsh;
  EXPECT_TRUE(Has(zsh, "'1:word:(new old)' \\\n        '*:file:_files'\n")) << zsh;
}

TEST(Completions, OfFishQuoteTheirTexts) {
  const std::string fish = *CompletionsOf(FewCommands(), "fish");
  EXPECT_TRUE(Has(fish, "set -l names serve show key help\n")) << fish;
  EXPECT_TRUE(Has(fish, R"(-l disk -x -a '(__fish_complete_directories)' -d 'a [folder]: it\'s)"))
      << fish;
  EXPECT_TRUE(Has(fish, "-l cache -x -a 'prefix none' -d 'mode'\n")) << fish;
  EXPECT_TRUE(Has(fish, "-l level -x -a 'low high' -d 'how much'\n")) << fish;
  EXPECT_TRUE(
      Has(fish,
          "from show' -a \"(kvasir list 2>/dev/null | awk 'NR > 1 && /^[^ ]/ { print \\$1 }')\"\n"))
      << fish;
  EXPECT_TRUE(Has(fish, "-s p -x -d 'count'\n")) << fish;
  EXPECT_TRUE(Has(fish, "-l pin -d 'cores'\n")) << fish;
  EXPECT_TRUE(Has(fish, " = 2' -a 'new old'\n")) << fish;
}

TEST(Completions, AnotherShellIsRefused) {
  EXPECT_EQ(CompletionsOf({}, "tcsh").error().code, Code::kInvalidArgument);
  EXPECT_TRUE(CompletionsOf({}, "tcsh").error().message.starts_with("unknown shell 'tcsh'; give"));
  EXPECT_TRUE(CompletionsOf({}, "").error().message.starts_with("give one of bash, zsh, fish"));
}

}  // namespace
}  // namespace kvasir::cli
