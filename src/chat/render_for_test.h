// Templates rendered with messages that are written as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/json_tree_for_test.h"
#include "chat/chat_template.h"

namespace kvasir {

using Json = nlohmann::ordered_json;

inline Result<RenderedChat> Render(std::string_view source, const Json& messages,
                                   ChatRenderOptions options = {}, const Json& tools = Json(),
                                   const Json& variables = Json()) {
  auto parsed = ChatTemplate::Parse(source);
  if (!parsed) return tl::unexpected(parsed.error());
  JsonTree tree;
  return (*parsed)->Render(TreeOf(messages, &tree), TreeOf(tools, &tree), TreeOf(variables, &tree),
                           options);
}

inline std::string ErrorOf(std::string_view source, const Json& variables = Json()) {
  const auto chat = Render(source, Json::array(), {}, Json(), variables);
  return chat ? "no error: " + chat->text : chat.error().message;
}

// Returns what the template wrote: the text without its literal ranges, which become `mark`.
inline std::string TemplateText(const RenderedChat& chat, std::string_view mark = "") {
  std::string out;
  size_t at = 0;
  for (const auto& [begin, end] : chat.literal) {
    out += chat.text.substr(at, begin - at);
    out += mark;
    at = end;
  }
  return out + chat.text.substr(at);
}

}  // namespace kvasir
