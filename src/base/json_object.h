// Reads a file that is one JSON object and may be malformed.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "kvasir/status.h"

namespace kvasir {

// More than model files need; limited because copying and walking a value recurse.
inline constexpr size_t kMaxJsonDepth = 128;

// Tells whether brackets outside of strings nest deeper than `levels`.
bool NestsDeeper(std::string_view json, size_t levels);

// kCorruption naming `file` when the text is malformed (also by a NUL byte; with line and byte), is
// not an object, or nests deeper than kMaxJsonDepth. `watch`: the callback of
// nlohmann::json::parse. O(size).
Result<nlohmann::json> ParseJsonObject(std::string_view text, const std::string& file,
                                       const nlohmann::json::parser_callback_t& watch = nullptr);

}  // namespace kvasir
