// Renders chat templates: a JSON object a line in, one out. tests/template_oracle.py compares it
// with jinja2. In: {template, messages, tools, variables, add_generation_prompt, bos, eos, now}.
// Out: {rendered, literal, message_end} or {error}.
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "base/json_tree_for_test.h"
#include "text/chat_template.h"

namespace {

using Json = nlohmann::ordered_json;

Json Render(const Json& in) {
  const auto parsed = kvasir::ChatTemplate::Parse(in.value("template", ""));
  if (!parsed) return {{"error", parsed.error().message}};
  kvasir::ChatRenderOptions options;
  options.add_generation_prompt = in.value("add_generation_prompt", false);
  options.bos_token = in.value("bos", "");
  options.eos_token = in.value("eos", "");
  options.now_unix_s = in.value("now", int64_t{0});
  kvasir::JsonTree tree;
  const auto field = [&](const char* name) {
    return in.contains(name) ? kvasir::TreeOf(in[name], &tree) : kvasir::JsonValue();
  };
  const auto chat =
      (*parsed)->Render(field("messages"), field("tools"), field("variables"), options);
  if (!chat) return {{"error", chat.error().message}};
  return {{"rendered", chat->text}, {"literal", chat->literal}, {"message_end", chat->message_end}};
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    const Json in = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    const Json out = in.is_object() ? Render(in) : Json{{"error", "the line is no JSON object"}};
    std::cout << out.dump(-1, ' ', false, Json::error_handler_t::replace) << std::endl;
  }
  return 0;
}
