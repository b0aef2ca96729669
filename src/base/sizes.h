// Sizes and whole numbers as people write them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvasir {

// Parses "2GiB", "512MiB", "1G" (2^30), "1GB" (10^9), "65536". nullopt: not a size, or more than
// 2^63.
std::optional<uint64_t> ParseBytes(std::string_view text);
std::string FormatBytes(uint64_t bytes);  // "2.00 GiB"
// Returns the least whole number of MiB that holds these bytes, as a flag takes it: "4MiB".
std::string RoundedUpMib(uint64_t bytes);
std::string CountText(uint64_t count, std::string_view noun);  // "1 block", "2 blocks"
// Says which whole numbers are taken instead of `text`: "from 1 to 9". A limit of the type alone
// tells a reader nothing unless the text is a number beyond it: "of at least 1".
std::string RangeText(std::string_view text, uint64_t min, uint64_t max);
// Parses digits only, no sign; nullopt on overflow.
std::optional<uint64_t> ParseUint(std::string_view text);

}  // namespace kvasir
