// The flags that say how chats are rendered.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json_tree.h"
#include "chat/chat_template.h"
#include "cli/args.h"

namespace kvasir::cli {

// --chat-template, --chat-template-file, --chat-template-kwargs, --template-date: for commands that
// take chats.
std::vector<Flag> TemplateFlags();
// Returns the text of the template that the first two name, checked by parsing it; absent without
// them.
Result<std::optional<std::string>> ReadTemplate(const Args& args);
// Returns the text of the variables, checked; "" without the flag.
Result<std::string> ReadTemplateVariables(const Args& args);
// Returns noon of the day that --template-date names, in local time; 0 without the flag.
Result<int64_t> ReadTemplateDate(const Args& args);
// Template and variables that chats are rendered with: `own` is null without a flag, `variables`
// then too.
struct TemplateChoice {
  std::unique_ptr<ChatTemplate> own;
  JsonTree tree;
  JsonValue variables;
  int64_t now_unix_s = 0;  // 0: the clock
};
Result<TemplateChoice> ChooseTemplate(const Args& args);
}  // namespace kvasir::cli
