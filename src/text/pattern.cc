#include "text/pattern.h"

#include <nlohmann/json.hpp>

namespace kvasir {

Result<Pattern> Pattern::Parse(const nlohmann::json& object) {
  const auto pattern = object.find("pattern");
  if (pattern != object.end() && pattern->is_object() && pattern->size() == 1) {
    const nlohmann::json& value = pattern->front();
    if (value.is_string()) {
      const auto& text = value.get_ref<const std::string&>();
      if (pattern->contains("Regex")) {
        KV_ASSIGN(Regex regex, Regex::Compile(text));
        return Pattern(std::move(regex));
      }
      if (pattern->contains("String") && text.empty()) {  // matches between all characters
        KV_ASSIGN(Regex regex, Regex::Compile(""));
        return Pattern(std::move(regex));
      }
      if (pattern->contains("String")) return Pattern(text);
    }
  }
  return Fail(Code::kCorruption,
              "tokenizer.json: a pattern is neither {{\"String\": ...}} nor {{\"Regex\": ...}}");
}

}  // namespace kvasir
