// Reading a file that is one JSON object, whoever wrote it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "kvasir/status.h"

namespace kvasir {

// Deeper than any model's files are; copying and walking a value recurse.
inline constexpr size_t kMaxJsonDepth = 128;

// Whether brackets outside of strings nest deeper than `levels`.
bool NestsDeeper(std::string_view json, size_t levels);

// kCorruption naming `file`: malformed (a NUL byte is), with line and byte; no object; nested
// deeper than kMaxJsonDepth. `watch` as nlohmann::json::parse takes it. O(size).
Result<nlohmann::json> ParseJsonObject(std::string_view text, const std::string& file,
                                       const nlohmann::json::parser_callback_t& watch = nullptr);

}  // namespace kvasir
