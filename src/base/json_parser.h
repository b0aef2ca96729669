// The parser whose events JsonBuilder takes.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace kvasir {

// With long double, so that integers of up to 4,932 digits are no error.
using JsonParser =
    nlohmann::basic_json<std::map, std::vector, std::string, bool, int64_t, uint64_t, long double>;

}  // namespace kvasir
