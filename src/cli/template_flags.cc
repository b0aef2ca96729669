#include "cli/template_flags.h"

#include <fmt/ranges.h>

#include <array>
#include <ctime>

#include "base/result.h"
#include "base/utf8.h"
#include "chat/builtin_templates.h"

namespace kvasir::cli {

std::vector<Flag> TemplateFlags() {
  return {
      {"chat-template", "NAME|TEXT",
       "instead of the model's own: chatml, llama2, llama3, mistral, gemma, phi3, command-r, or "
       "the text of a Jinja template"},
      {"chat-template-file", "F", "a file with a Jinja template instead of the model's own"},
      {"chat-template-kwargs", "JSON",
       "variables for the template: {\"enable_thinking\": false}; those of a request come "
       "first"},
      {"template-date", "YYYY-MM-DD",
       "the date that a template writes, instead of today: its prompts stay the same tomorrow"},
      {"reasoning", "on|off|auto",
       "enable_thinking of the template; auto (default): as the template has it"}};
}

namespace {

Result<std::string> TemplateOfName(const std::string& given) {
  if (const auto builtin = BuiltinTemplate(given)) return std::string(*builtin);
  if (given.find("{{") == given.npos && given.find("{%") == given.npos) {
    return Fail(Code::kInvalidArgument,
                "--chat-template: '{}' is neither a known name ({}) nor the text of a template, "
                "which has {{{{ or {{%",
                given, fmt::join(BuiltinTemplateNames(), ", "));
  }
  if (const auto parsed = ChatTemplate::Parse(given); !parsed) {
    return Fail(Code::kInvalidArgument, "--chat-template: {}", parsed.error().message);
  }
  return given;
}

}  // namespace

Result<std::optional<std::string>> ReadTemplate(const Args& args) {
  if (const auto given = args.Text("chat-template")) {
    if (args.Has("chat-template-file")) {
      return Fail(Code::kInvalidArgument,
                  "give only one of --chat-template and --chat-template-file");
    }
    return TemplateOfName(*given);
  }
  if (!args.Has("chat-template-file")) return std::nullopt;
  const std::string path = *args.Text("chat-template-file");
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  KV_ASSIGN(std::string text,
            ReadFlagFile("chat-template-file", path, "a file with a Jinja template"));
  if (text.starts_with(kByteOrderMark)) text.erase(0, kByteOrderMark.size());
  const auto fail = [&](std::string_view what) {
    return Fail(Code::kInvalidArgument, "--chat-template-file: {}: {}", path, what);
  };
  if (text.find_first_not_of(" \t\r\n") == text.npos) {
    return fail("the file is empty; give a template, or leave the flag out for the model's own");
  }
  if (const size_t bad = FirstInvalidUtf8(text); bad < text.size()) {
    return fail(fmt::format("not UTF-8 at byte {}", bad));
  }
  if (const auto parsed = ChatTemplate::Parse(text); !parsed) return fail(parsed.error().message);
  return text;
}

Result<std::string> ReadTemplateVariables(const Args& args) {
  std::string thinking;
  if (const auto word = args.Text("reasoning"); word && *word != "auto") {
    if (*word != "on" && *word != "off") {
      return Fail(Code::kInvalidArgument, "--reasoning: '{}' is not on, off or auto", *word);
    }
    thinking = fmt::format("\"enable_thinking\":{}", *word == "on");
  }
  const std::optional<std::string> text = args.Text("chat-template-kwargs");
  if (!text) return thinking.empty() ? thinking : "{" + thinking + "}";
  JsonTree tree;
  const auto variables = ParseVariables(text->empty() ? "?" : *text, &tree);
  if (!variables) {
    return Fail(Code::kInvalidArgument, "--chat-template-kwargs: '{}' {}", *text,
                variables.error().message);
  }
  if (thinking.empty()) return *text;
  if (variables->Find("enable_thinking")) {
    return Fail(Code::kInvalidArgument,
                "--reasoning: --chat-template-kwargs has enable_thinking too; give one of them");
  }
  if (variables->members().empty()) return "{" + thinking + "}";
  return "{" + thinking + "," + text->substr(text->find('{') + 1);
}

Result<int64_t> ReadTemplateDate(const Args& args) {
  const std::optional<std::string> text = args.Text("template-date");
  if (!text) return 0;
  constexpr const char* kFormat = "%Y-%m-%d";
  std::tm day{};
  const bool is_read = strptime(text->c_str(), kFormat, &day) != nullptr;
  day.tm_hour = 12;
  day.tm_isdst = -1;
  const std::time_t noon = is_read ? std::mktime(&day) : -1;
  // strptime takes 2026-1-2, spaces and 2026-02-30 too: only what is written so again is a date.
  std::array<char, 16> again{};
  std::strftime(again.data(), again.size(), kFormat, &day);
  if (noon > 0 && *text == again.data()) return noon;
  return Fail(Code::kInvalidArgument,
              "--template-date: '{}' is not a date from 1970-01-02 on, such as 2026-03-31", *text);
}

Result<TemplateChoice> ChooseTemplate(const Args& args) {
  TemplateChoice choice;
  KV_ASSIGN(const std::optional<std::string> text, ReadTemplate(args));
  if (text) {
    KV_ASSIGN(choice.own, ChatTemplate::Parse(*text));
  }
  KV_ASSIGN(const std::string variables, ReadTemplateVariables(args));
  KV_ASSIGN(choice.variables, ParseVariables(variables, &choice.tree));
  KV_ASSIGN(choice.now_unix_s, ReadTemplateDate(args));
  return choice;
}

}  // namespace kvasir::cli
