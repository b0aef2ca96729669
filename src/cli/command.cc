#include "cli/command.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "base/check.h"

namespace kvasir::cli {
namespace {

constexpr size_t kWidth = 100;
constexpr size_t kColumn = 26;         // of the help of a flag
constexpr size_t kCommandColumn = 15;  // of the purpose of a command

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

// Tells whether --help lists the flag by default.
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

// The subjects of flags that several commands have.
struct Subject {
  std::string_view title, names;
};

constexpr std::string_view kEveryday = "Every day";
constexpr Subject kSubjects[] = {
    {"Model",
     "model hf-repo weights shape threads ctx-size lora lora-scaled lora-memory max-lora-rank "
     "max-loras lora-dir"},
    {"Answers",
     "max-tokens min-tokens temperature top-k top-p min-p repetition-penalty presence-penalty "
     "frequency-penalty no-repeat-ngram-size seed stop ignore-eos generation-config"},
    {"Chats",
     "system chat-template chat-template-file chat-template-kwargs template-date reasoning"},
    {"Memory and cache",
     "kv-memory kv-format kv-skip-layers parallel cache eviction retention exact-tokens spans seam "
     "span-head request-memory session-memory head-memory grammar-memory allow-overcommit "
     "cache-dir image-cap"},
    {"Drafts", "speculate draft-max draft-model draft-hf-repo draft-kv-memory"},
    {"Disk", "resume disk disk-cap disk-ttl disk-reserve state-dir secret-file"},
    {"Fleet", "remote fleet-secret remote-ca remote-mode remote-memory remote-ttl remote-daily"},
    {"Log", "log-level"}};
constexpr std::string_view kOthers = "This command";

// Titles of kvasir --help, each before the command that it begins with.
constexpr std::pair<std::string_view, std::string_view> kCommandTitles[] = {
    {"run", "Every day"},
    {"list", "Models"},
    {"plan", "Planning, measuring and proving"},
    {"sessions", "What the disk keeps"},
    {"key", "Keys, services and shells"}};

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
  KV_CHECK(command.operands.empty() == (command.max_operands == 0));
  help += fmt::format("\n\nUsage: kvasir {} [FLAGS]{}{}\n\nExample:\n  kvasir {}\n\nFlags:\n",
                      command.name, command.operands.empty() ? "" : " ", command.operands,
                      command.example);
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
    for (const auto& [first, title] : kCommandTitles) {
      if (first == command.name) help += fmt::format("\n {}\n", title);
    }
    help += fmt::format("  {:<{}}{}\n", command.name, kCommandColumn - 2,
                        Wrap(command.purpose, kCommandColumn));
    help += fmt::format("{:{}}kvasir {}\n", "", kCommandColumn, command.example);
  }
  help +=
      "\n" + Wrap(
                 "All but backup, completions, fsck, health, inspect, key, list, models, ps, pull, "
                 "restore, rm and sessions take --model (a Hugging Face folder, a GGUF file, or "
                 "the name of a model "
                 "that pull fetched; default: the bundled model), --kv-format, --weights and "
                 "--threads; 'kvasir COMMAND --help' lists its flags. Environment: KVASIR_MODEL "
                 "is the default of --model, KVASIR_TARGET forces an instruction set ('kvasir "
                 "info' lists them).",
                 0);
  help +=
      "\nExit status: 0 done, 1 the work failed, 2 arguments or input are wrong, 130 "
      "interrupted.\n";
  return help;
}

Command Grouped(Command command, const std::string& everyday) {
  const std::vector<Flag>& flags = command.flags;
  std::set<std::string> seen;
  const auto usual = [&](std::string_view names) {
    std::string there;
    std::istringstream all{std::string(names)};
    for (std::string name; all >> name;) {
      const auto flag = std::ranges::find(flags, name, &Flag::name);
      if (flag == flags.end() || !IsUsual(*flag) || !seen.insert(name).second) continue;
      there += (there.empty() ? "" : " ") + name;
    }
    return there;
  };
  std::vector<FlagGroup>& groups = command.groups;
  groups = {{std::string(kEveryday), usual(everyday)}, {std::string(kOthers), ""}};
  for (const auto& [title, names] : kSubjects) {
    if (std::string there = usual(names); !there.empty()) {
      groups.push_back({std::string(title), std::move(there)});
    }
  }
  std::string all;
  for (const Flag& flag : flags) all += flag.name + " ";
  groups[1].names = usual(all);
  if (groups[1].names.empty()) groups.erase(groups.begin() + 1);
  return command;
}

}  // namespace kvasir::cli
