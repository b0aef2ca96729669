// The error for an architecture that no row of the table has.
#include <algorithm>
#include <vector>

#include "base/ascii.h"
#include "base/result.h"
#include "import/architecture.h"

namespace kvasir {
namespace {

// Counts the letters that two names begin with alike, whatever their case.
size_t SharedStart(std::string_view a, std::string_view b) {
  const auto same = [](char x, char y) { return LowerAscii(x) == LowerAscii(y); };
  return static_cast<size_t>(std::ranges::mismatch(a, b, same).in1 - a.begin());
}

// Writes " (similar: gemma2, gemma3)": of the rows that begin alike, those that do so the longest.
std::string Similar(std::string_view name, std::string_view Architecture::*kind) {
  constexpr size_t kFewest = 4;
  size_t longest = kFewest;
  std::vector<std::string_view> names;
  for (const Architecture& row : Architectures()) {
    const size_t shared = SharedStart(row.*kind, name);
    if (shared > longest) names.clear();
    longest = std::max(longest, shared);
    if (shared == longest && std::ranges::find(names, row.*kind) == names.end()) {
      names.push_back(row.*kind);
    }
  }
  return names.empty() ? "" : fmt::format(" (similar: {})", fmt::join(names, ", "));
}

// Tells whether a name is that of models whose tokens see those after them too.
bool IsBidirectional(std::string_view name) {
  constexpr std::string_view kParts[] = {"bert", "bidirectional", "gemma-embedding", "t5encoder"};
  const std::string lower = LowerAscii(name);
  return std::ranges::any_of(kParts,
                             [&](std::string_view part) { return lower.find(part) != lower.npos; });
}

}  // namespace

tl::unexpected<Error> UnsupportedArchitecture(const std::string& file, std::string_view name,
                                              std::string_view Architecture::*kind) {
  if (IsBidirectional(name)) {
    return Fail(Code::kUnsupported,
                "{}: architecture '{}' is bidirectional: only models whose tokens see the tokens "
                "before them are supported",
                file, name.substr(0, 80));
  }
  return Fail(
      Code::kUnsupported,
      "{}: architecture '{}' is not supported yet{}; docs/models.md lists the families that "
      "are",
      file, name.substr(0, 80), Similar(name, kind));
}

}  // namespace kvasir
