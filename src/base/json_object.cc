#include "base/json_object.h"

#include <algorithm>

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

namespace {

// Names what other formats allow and JSON does not, where a text stops being JSON; "": neither.
std::string_view ForeignForm(std::string_view before, std::string_view after) {
  if (after.starts_with('/') || after.starts_with('#')) return " (JSON has no comments)";
  const size_t last = before.find_last_not_of(" \t\r\n");
  const bool is_end = after.starts_with('}') || after.starts_with(']');
  if (!is_end || last == before.npos || before[last] != ',') return "";
  return " (JSON has no comma after the last value)";
}

}  // namespace

Result<nlohmann::json> ParseJsonObject(std::string_view text, const std::string& file,
                                       const nlohmann::json::parser_callback_t& watch) {
  if (NestsDeeper(text, kMaxJsonDepth)) {
    return Fail(Code::kCorruption, "{}: its JSON nests deeper than {} levels", file, kMaxJsonDepth);
  }
  const auto malformed = [&](size_t offset) {
    const std::string_view before = text.substr(0, std::min(offset, text.size()));
    return Fail(Code::kCorruption, "{}: not valid JSON at line {}, byte {}{}", file,
                1 + std::ranges::count(before, '\n'), before.size() - (before.rfind('\n') + 1) + 1,
                ForeignForm(before, text.substr(before.size())));
  };
  // The parser takes a NUL as the end of the text.
  if (const size_t nul = text.find('\0'); nul != text.npos) return malformed(nul);
  try {
    nlohmann::json object = nlohmann::json::parse(text, watch);
    if (object.is_object()) return object;
  } catch (const nlohmann::json::parse_error& error) {
    return malformed(error.byte == 0 ? 0 : error.byte - 1);
  } catch (const nlohmann::json::out_of_range&) {
    return Fail(Code::kCorruption, "{}: a number is too large for a 64-bit float", file);
  }
  return Fail(Code::kCorruption, "{}: not a JSON object", file);
}

}  // namespace kvasir
