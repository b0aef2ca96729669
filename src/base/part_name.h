// PartName: what a part of a split model file is called, STEM-00001-of-00003.gguf.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvasir {

// REQUIRES: 1 <= number <= count < 100,000; the stem is not empty.
struct PartName {
  std::string stem;  // with the folders before the name, where there are any
  uint32_t number, count;
  std::string suffix;  // ".gguf" in either case

  std::string Text(uint32_t of_number) const;  // the name of another part
};

// Absent: `name` is not the name of a part. Numbers have five digits; part 0, a part above the
// count and a name without a stem are not parts.
std::optional<PartName> ParsePartName(std::string_view name);

}  // namespace kvasir
