#include "base/part_name.h"

#include <fmt/format.h>

#include "base/ascii.h"

namespace kvasir {

std::string PartName::Text(uint32_t of_number) const {
  return fmt::format("{}-{:05}-of-{:05}{}", stem, of_number, count, suffix);
}

std::optional<PartName> ParsePartName(std::string_view name) {
  constexpr std::string_view kPattern = "-00000-of-00000.gguf";
  constexpr size_t kSuffixBytes = std::string_view(".gguf").size();
  if (name.size() <= kPattern.size()) return std::nullopt;
  const std::string_view stem = name.substr(0, name.size() - kPattern.size());
  const std::string_view end = name.substr(stem.size());
  if (stem.ends_with('/')) return std::nullopt;
  uint32_t number = 0, count = 0;
  for (size_t i = 0; i < kPattern.size(); ++i) {
    if (kPattern[i] == '0') {
      if (!IsAsciiDigit(end[i])) return std::nullopt;
      uint32_t& figure = i < 6 ? number : count;
      figure = figure * 10 + static_cast<uint32_t>(end[i] - '0');
    } else {
      const bool is_suffix = i >= kPattern.size() - kSuffixBytes;
      if ((is_suffix ? LowerAscii(end[i]) : end[i]) != kPattern[i]) return std::nullopt;
    }
  }
  if (number < 1 || number > count) return std::nullopt;
  return PartName{std::string(stem), number, count,
                  std::string(end.substr(end.size() - kSuffixBytes))};
}

}  // namespace kvasir
