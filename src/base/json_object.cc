#include "base/json_object.h"

#include "base/result.h"

namespace kvasir {

bool NestsDeeper(std::string_view json, size_t levels) {
  size_t depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > levels) return true;
    } else if ((c == '}' || c == ']') && depth > 0) {
      --depth;
    }
  }
  return false;
}

Result<nlohmann::json> ParseJsonObject(std::string_view text, const std::string& file) {
  if (NestsDeeper(text, kMaxJsonDepth)) {
    return Fail(Code::kCorruption, "{}: its JSON nests deeper than {} levels", file, kMaxJsonDepth);
  }
  // The parser takes a NUL for the end.
  nlohmann::json object = text.find('\0') == text.npos
                              ? nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false)
                              : nlohmann::json(nlohmann::json::value_t::discarded);
  if (object.is_discarded()) return Fail(Code::kCorruption, "{}: malformed JSON", file);
  if (!object.is_object()) return Fail(Code::kCorruption, "{}: is no JSON object", file);
  return object;
}

}  // namespace kvasir
