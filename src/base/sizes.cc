#include "base/sizes.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <utility>

#include "base/ascii.h"
#include "base/bytes.h"

namespace kvasir {

std::optional<uint64_t> ParseUint(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<uint64_t> ParseBytes(std::string_view text) {
  const size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::string_view unit = text.substr(digits);
  const std::string number(text.substr(0, digits));
  static constexpr std::pair<std::string_view, uint64_t> kUnits[] = {{"", 1},
                                                                     {"B", 1},
                                                                     {"K", 1u << 10},
                                                                     {"KiB", 1u << 10},
                                                                     {"M", 1u << 20},
                                                                     {"MiB", 1u << 20},
                                                                     {"G", 1u << 30},
                                                                     {"GiB", 1u << 30},
                                                                     {"T", 1ull << 40},
                                                                     {"TiB", 1ull << 40},
                                                                     {"KB", 1000},
                                                                     {"MB", 1000000},
                                                                     {"GB", 1000000000},
                                                                     {"TB", 1000000000000}};
  const auto* found = std::find_if(std::begin(kUnits), std::end(kUnits),
                                   [&](const auto& entry) { return entry.first == unit; });
  if (found == std::end(kUnits)) return std::nullopt;
  constexpr uint64_t kMax = uint64_t{1} << 63;
  if (const std::optional<uint64_t> whole = ParseUint(number)) {
    const std::optional<uint64_t> bytes = CheckedMul(*whole, found->second);
    return bytes && *bytes <= kMax ? bytes : std::nullopt;
  }
  double value = 0;  // "1.5GiB"
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value,
                                            std::chars_format::fixed);
  if (number.empty() || error != std::errc() || end != number.data() + number.size() ||
      found->second == 1) {
    return std::nullopt;
  }
  const double bytes = value * static_cast<double>(found->second);
  if (!(bytes <= static_cast<double>(kMax))) return std::nullopt;
  return static_cast<uint64_t>(bytes);
}

std::string FormatBytes(uint64_t bytes) {
  const char* const units[] = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(units)) value /= 1024, ++unit;
  return fmt::format("{:.2f} {}", value, units[unit]);
}

std::string RoundedUpMib(uint64_t bytes) {
  constexpr uint64_t kMib = uint64_t{1} << 20;
  return fmt::format("{}MiB", bytes / kMib + (bytes % kMib != 0 ? 1 : 0));
}

std::string CountText(uint64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string RangeText(std::string_view text, uint64_t min, uint64_t max) {
  const auto value = ParseUint(text);
  const bool is_number = !text.empty() && std::ranges::all_of(text, IsAsciiDigit);
  const bool is_beyond = is_number && (!value || *value > max);
  if (max >= INT32_MAX && !is_beyond) return fmt::format("of at least {}", min);
  return fmt::format("from {} to {}", min, max);
}

}  // namespace kvasir
