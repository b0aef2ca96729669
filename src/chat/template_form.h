// TemplateForm: the form in which a chat template shows what a chat says.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "base/json_tree.h"
#include "jinja/input.h"
#include "kvasir/status.h"

namespace kvasir {

struct RenderedChat;

struct TemplateForm {
  // How the calls of an old answer are given to the template. kContent: it shows no `tool_calls`,
  // so they are written into the content, as the "json" format of docs/tools.md has them.
  enum class Calls : uint8_t { kObjectArguments, kTextArguments, kContent };
  Calls calls = Calls::kObjectArguments;
  bool takes_text_arguments = true;  // else it shows arguments only where they are an object
  bool null_content = false;         // it shows calls only beside content that is null

  // It shows content only where that is a list of parts.
  bool content_parts = false;

  // What it shows. What it does not is `unseen` (RenderedChat).
  bool shows_tools = false, shows_calls = false, shows_several_calls = false;
  bool shows_results = false, shows_system = false, shows_late_system = false;
  // It shows a system message that comes after others, and shows it where it stands; it takes two
  // messages of the user in a row, and two of the assistant.
  bool takes_late_system = false, takes_same_role_twice = false;
};

// Tries the template with a few small chats. `render` renders messages with tools, or with null,
// and gives content this form. `source`: of the template; where it does not have
// `tool_calls`, they are never given to it.
using TryRender = std::function<Result<RenderedChat>(
    const JsonValue& messages, const JsonValue& tools, jinja::ContentForm content)>;
TemplateForm FindTemplateForm(const TryRender& render, std::string_view source);

}  // namespace kvasir
