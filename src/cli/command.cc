#include "cli/command.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "base/check.h"

namespace kvasir::cli {
namespace {

constexpr size_t kWidth = 100;
constexpr size_t kColumn = 26;

// Wraps `text` at spaces and indents each line except the first by `indent`.
std::string Wrap(std::string_view text, size_t indent) {
  std::string out;
  size_t column = indent;
  while (!text.empty()) {
    const size_t space = std::min(text.find(' '), text.size());
    if (column > indent && column + 1 + space > kWidth) {
      out += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (column > indent) {
      out += ' ';
      ++column;
    }
    out += text.substr(0, space);
    column += space;
    text.remove_prefix(std::min(space + 1, text.size()));
  }
  return out;
}

std::string FlagLine(const Flag& flag) {
  std::string left = "  " + Dashed(flag.name) + (flag.value.empty() ? "" : " " + flag.value);
  left += left.size() + 2 > kColumn ? "\n" + std::string(kColumn, ' ')
                                    : std::string(kColumn - left.size(), ' ');
  return left + Wrap(flag.help, kColumn) + "\n";
}

// Whether --help lists the flag by default.
bool IsUsual(const Flag& flag) { return !flag.absent_part && !flag.is_expert; }

std::string FlagLines(const Command& command, bool is_expert) {
  std::string lines;
  for (const Flag& flag : command.flags) {
    if (is_expert ? flag.is_expert : IsUsual(flag)) lines += FlagLine(flag);
  }
  return lines;
}

std::string GroupedLines(const Command& command) {
  std::string lines;
  std::set<std::string> seen;
  for (const FlagGroup& group : command.groups) {
    lines += "\n " + group.title + "\n";
    std::istringstream names(group.names);
    for (std::string name; names >> name;) {
      const auto flag = std::ranges::find(command.flags, name, &Flag::name);
      KV_CHECK(flag != command.flags.end() && IsUsual(*flag) && seen.insert(name).second);
      lines += FlagLine(*flag);
    }
  }
  KV_CHECK(seen.size() == static_cast<size_t>(std::ranges::count_if(command.flags, IsUsual)));
  return lines + "\n Help\n";
}

// Returns "--block-tokens, --step-tokens".
std::string ExpertNames(const Command& command) {
  std::string names;
  for (const Flag& flag : command.flags) {
    if (flag.is_expert) names += (names.empty() ? "" : ", ") + Dashed(flag.name);
  }
  return names;
}

}  // namespace

int ExitStatus(Code code) {
  switch (code) {
    case Code::kInvalidArgument:
    case Code::kNotFound:
    case Code::kCorruption:  // a file that the user named; cache faults never get here
    case Code::kUnsupported:
      return kExitWrongInput;
    case Code::kCancelled:
      return kExitInterrupted;
    case Code::kExhausted:
    case Code::kIoError:
    case Code::kDeadlineExceeded:
    case Code::kUnavailable:
    case Code::kPermissionDenied:
    case Code::kModelChanged:
      return kExitFailed;
  }
  return kExitFailed;
}

std::string HelpOf(const Command& command, HelpPage page) {
  if (page == HelpPage::kExpert) {
    return fmt::format("kvasir {}: flags that few need; their defaults suit most\n\nFlags:\n",
                       command.name) +
           FlagLines(command, true) + FlagLine({"help", "", "all other flags", FlagKind::kSwitch});
  }
  std::string help = Wrap(fmt::format("kvasir {}: {}", command.name, command.purpose), 0);
  help += fmt::format("\n\nExample:\n  kvasir {}\n\nFlags:\n", command.example);
  help += command.groups.empty() ? FlagLines(command, false) : GroupedLines(command);
  if (const std::string experts = ExpertNames(command); !experts.empty()) {
    help += FlagLine({"help-expert", "", "flags that few need: " + experts, FlagKind::kSwitch});
  }
  help += FlagLine({"help", "", "this text", FlagKind::kSwitch});
  if (!command.notes.empty()) help += "\n" + Wrap(command.notes, 0) + "\n";
  return help;
}

std::string HelpOf(const std::vector<Command>& commands) {
  std::string help =
      "kvasir: runs language models over a KV cache that never reads a prompt twice\n\n"
      "Usage: kvasir COMMAND [FLAGS]\n\nCommands:\n";
  for (const Command& command : commands) {
    help += fmt::format("  {:<10}{}\n", command.name, Wrap(command.purpose, 12));
    help += fmt::format("            kvasir {}\n", command.example);
  }
  help +=
      "\nAll but fsck, inspect, key, models, pull and sessions take --model (a Hugging Face "
      "folder, "
      "a\n"
      "GGUF file, or the name of a model that pull fetched; default: the bundled model), "
      "--kv-format,\n"
      "--weights and --threads; 'kvasir COMMAND --help' lists its flags. Environment: "
      "KVASIR_TARGET\n"
      "forces an instruction set ('kvasir info' lists them).\n"
      "Exit status: 0 done, 1 the work failed, 2 arguments or input are wrong, 130 interrupted.\n";
  return help;
}

}  // namespace kvasir::cli
