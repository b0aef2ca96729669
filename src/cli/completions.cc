// kvasir completions: scripts that complete commands and flags in a shell, made from their tables.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "base/ascii.h"
#include "base/result.h"
#include "cli/command.h"

namespace kvasir::cli {
namespace {

// What may follow a flag.
enum class ValueKind { kNone, kFolder, kFile, kChoice, kText };

ValueKind KindOf(const Flag& flag) {
  if (flag.kind == FlagKind::kSwitch) return ValueKind::kNone;
  const std::string& value = flag.value;
  if (!flag.choices.empty()) return ValueKind::kChoice;
  if (value == "DIR") return ValueKind::kFolder;
  for (const char* file : {"F", "F.json", "FILE", "PATH", "M"}) {
    if (value == file) return ValueKind::kFile;
  }
  const auto is_of_choice = [](char c) {
    return c == '|' || c == '-' || c == '_' || IsAsciiDigit(c) || (c >= 'a' && c <= 'z');
  };
  return value.find('|') != value.npos && std::ranges::all_of(value, is_of_choice)
             ? ValueKind::kChoice
             : ValueKind::kText;
}

std::string ChoicesOf(const Flag& flag) {
  std::string words = flag.choices.empty() ? flag.value : flag.choices;
  std::ranges::replace(words, '|', ' ');
  return words;
}

// Returns the text with `escape` before each of `special`.
std::string Escaped(std::string_view text, std::string_view special, std::string_view escape) {
  std::string out;
  for (const char c : text) {
    if (special.find(c) != special.npos) out += escape;
    out += c;
  }
  return out;
}

// Returns the beginning of a help text: one line of a menu.
std::string ShortHelp(std::string_view help) {
  constexpr size_t kMost = 72;
  if (help.size() <= kMost) return std::string(help);
  return std::string(help.substr(0, help.rfind(' ', kMost - 4))) + " ...";
}

// Returns the flags that a menu shows: those that exist, and the help.
std::vector<Flag> FlagsOf(const Command& command) {
  std::vector<Flag> flags;
  bool has_experts = false;
  for (const Flag& flag : command.flags) {
    has_experts |= flag.is_expert;
    if (!flag.absent_part) flags.push_back(flag);
  }
  if (has_experts) flags.push_back({"help-expert", "", "flags that few need", FlagKind::kSwitch});
  flags.push_back({"help", "", "this command's flags", FlagKind::kSwitch});
  return flags;
}

// Tells whether the arguments without a flag name models.
bool TakesModels(const Command& command) {
  return command.words.empty() && command.name != "pull" &&
         command.operands.find("MODEL") != std::string::npos;
}

std::string NamesOf(const std::vector<Command>& commands) {
  std::string names;
  for (const Command& command : commands) names += command.name + " ";
  return names + "help";
}

std::string BashOf(const std::vector<Command>& commands) {
  std::string cases;
  for (const Command& command : commands) {
    std::string names, values;
    const auto add = [&values](const Flag& flag, std::string_view what) {
      values += fmt::format("        {}) {}; return ;;\n", Dashed(flag.name), what);
    };
    for (const Flag& flag : FlagsOf(command)) {
      names += (names.empty() ? "" : " ") + Dashed(flag.name);
      switch (KindOf(flag)) {
        case ValueKind::kNone:
          break;
        case ValueKind::kFolder:
          add(flag, "_kvasir_words -d");
          break;
        case ValueKind::kFile:
          add(flag, "_kvasir_words -f");
          break;
        case ValueKind::kChoice:
          add(flag, fmt::format("_kvasir_words -W '{}'", ChoicesOf(flag)));
          break;
        case ValueKind::kText:
          if (flag.kind != FlagKind::kOptional) add(flag, "COMPREPLY=()");
          break;
      }
    }
    cases += fmt::format(
        "    {})\n      case $before in\n{}      esac\n      names='{}' operands='{}'{}\n      "
        ";;\n",
        command.name, values, names, command.words, TakesModels(command) ? " models=1" : "");
  }
  return fmt::format(R"(# Completions of kvasir for bash; 'kvasir completions bash' wrote them.
_kvasir_words() {{
  [ "$1" = -W ] || compopt -o filenames 2>/dev/null
  mapfile -t COMPREPLY < <(compgen "$@" -- "$word")
}}
# The models of 'kvasir list' and files. Bash takes the colon of a name as the end of a word. Some
# repository's author chose the name, so bash must not expand it: 'compgen -W' runs a $(...) in it.
_kvasir_models() {{
  local begin= rest=$word name quoted
  if [ "$rest" = : ]; then
    begin=$before: rest=
  elif [ "$before" = : ]; then
    begin=${{COMP_WORDS[COMP_CWORD-2]}}:
  fi
  while IFS= read -r name; do
    printf -v quoted %q "$name"
    if [[ $name == "$begin$rest"* || $quoted == "$begin$rest"* ]]; then
      COMPREPLY+=("${{quoted#"$begin"}}")
    fi
  done < <("${{COMP_WORDS[0]}}" list 2>/dev/null | awk 'NR > 1 && /^[^ ]/ {{ print $1 }}')
  [ "${{#COMPREPLY[@]}}" -gt 0 ] || _kvasir_words -f
}}
_kvasir() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} names= operands= models=
  COMPREPLY=()
  if [ "$COMP_CWORD" = 1 ]; then
    _kvasir_words -W '{0} --help --version'
    return
  fi
  case ${{COMP_WORDS[1]}} in
    help)
      _kvasir_words -W '{0}'
      return
      ;;
{1}  esac
  case $word in
    -*) _kvasir_words -W "$names" ;;
    *)
      if [ "$COMP_CWORD" = 2 ] && [ -n "$operands" ]; then
        _kvasir_words -W "$operands"
      elif [ -n "$models" ]; then
        _kvasir_models
      else
        _kvasir_words -f
      fi
      ;;
  esac
}}
complete -F _kvasir kvasir
)",
                     NamesOf(commands), cases);
}

std::string ZshOf(const std::vector<Command>& commands) {
  const auto quoted = [](std::string_view text) {
    std::string out;
    for (const char c : Escaped(text, "\\[]:", "\\"))
      out += c == '\'' ? "'\\''" : std::string(1, c);
    return out;
  };
  std::string names, cases;
  for (const Command& command : commands) {
    names += fmt::format("    '{}:{}'\n", command.name, quoted(ShortHelp(command.purpose)));
    cases += fmt::format("    {})\n      _arguments", command.name);
    for (const Flag& flag : FlagsOf(command)) {
      std::string value;
      switch (KindOf(flag)) {
        case ValueKind::kNone:
          break;
        case ValueKind::kFolder:
          value = ":folder:_files -/";
          break;
        case ValueKind::kFile:
          value = ":file:_files";
          break;
        case ValueKind::kChoice:
          value = fmt::format(":value:({})", ChoicesOf(flag));
          break;
        case ValueKind::kText:
          value = ":" + quoted(flag.value) + ": ";
          break;
      }
      if (flag.kind == FlagKind::kOptional) value = ":" + value;
      const bool is_list = flag.kind == FlagKind::kList;
      cases += fmt::format(" \\\n        '{}{}[{}]{}'", is_list ? "*" : "", Dashed(flag.name),
                           quoted(ShortHelp(flag.help)), value);
    }
    if (!command.words.empty()) {
      cases += fmt::format(" \\\n        '1:word:({})'", command.words);
    }
    const char* operand = TakesModels(command)       ? " \\\n        '*:model:_kvasir_models'"
                          : command.max_operands > 0 ? " \\\n        '*:file:_files'"
                                                     : "";
    cases += fmt::format("{}\n      ;;\n", operand);
  }
  return fmt::format(R"(#compdef kvasir
# Completions of kvasir for zsh; 'kvasir completions zsh' wrote them.
_kvasir_models() {{
  local -a found
  found=($(kvasir list 2>/dev/null | awk 'NR > 1 && /^[^ ]/ {{ print $1 }}'))
  compadd -a found
  _files
}}
_kvasir() {{
  local -a commands
  commands=(
{}    'help:the flags of a command'
  )
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  local command=$words[2]
  shift words
  (( CURRENT-- ))
  case $command in
    help) _describe command commands ;;
{}  esac
}}
if [ "$funcstack[1]" = _kvasir ]; then _kvasir "$@"; else compdef _kvasir kvasir; fi
)",
                     names, cases);
}

std::string FishOf(const std::vector<Command>& commands) {
  const auto quoted = [](std::string_view text) { return "'" + Escaped(text, "\\'", "\\") + "'"; };
  std::string lines = fmt::format(
      "# Completions of kvasir for fish; 'kvasir completions fish' wrote them.\n"
      "set -l names {}\n"
      "complete -c kvasir -f\n"
      "complete -c kvasir -n '__fish_seen_subcommand_from help' -a \"$names\"\n",
      NamesOf(commands));
  for (const Command& command : commands) {
    lines += fmt::format(
        "complete -c kvasir -n \"not __fish_seen_subcommand_from $names\" -a {} -d {}\n",
        command.name, quoted(ShortHelp(command.purpose)));
    for (const Flag& flag : FlagsOf(command)) {
      std::string value = " -x";
      switch (KindOf(flag)) {
        case ValueKind::kNone:
          value = "";
          break;
        case ValueKind::kFolder:
          value = " -x -a '(__fish_complete_directories)'";
          break;
        case ValueKind::kFile:
          value = " -r -F";
          break;
        case ValueKind::kChoice:
          value = fmt::format(" -x -a '{}'", ChoicesOf(flag));
          break;
        case ValueKind::kText:
          if (flag.kind == FlagKind::kOptional) value = "";
          break;
      }
      lines += fmt::format("complete -c kvasir -n '__fish_seen_subcommand_from {}' {} {}{} -d {}\n",
                           command.name, flag.name.size() == 1 ? "-s" : "-l", flag.name, value,
                           quoted(ShortHelp(flag.help)));
    }
    if (!command.words.empty()) {
      lines += fmt::format(
          "complete -c kvasir -n '__fish_seen_subcommand_from {0}; and test (count (commandline "
          "-opc)) = 2' -a '{1}'\n",
          command.name, command.words);
    }
    if (TakesModels(command)) {
      lines += fmt::format(
          "complete -c kvasir -n '__fish_seen_subcommand_from {}' -a \"(kvasir list 2>/dev/null | "
          "awk 'NR > 1 && /^[^ ]/ {{ print \\$1 }}')\"\n",
          command.name);
    }
    if (command.max_operands > 0) {
      lines +=
          fmt::format("complete -c kvasir -n '__fish_seen_subcommand_from {}' -F\n", command.name);
    }
  }
  return lines;
}

}  // namespace

Result<std::string> CompletionsOf(const std::vector<Command>& commands, std::string_view shell) {
  if (shell == "bash") return BashOf(commands);
  if (shell == "zsh") return ZshOf(commands);
  if (shell == "fish") return FishOf(commands);
  return Fail(Code::kInvalidArgument,
              "{}give one of bash, zsh, fish, such as 'kvasir completions bash > "
              "~/.local/share/bash-completion/completions/kvasir'",
              shell.empty() ? "" : fmt::format("unknown shell '{}'; ", shell));
}

}  // namespace kvasir::cli
