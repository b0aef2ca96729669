// The parser whose events JsonBuilder takes.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace kvasir {

// With long double: an integer may have up to 4,932 digits.
using JsonParser =
    nlohmann::basic_json<std::map, std::vector, std::string, bool, int64_t, uint64_t, long double>;

}  // namespace kvasir
