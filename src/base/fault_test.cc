#include "base/fault.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

#include "source_paths.h"

namespace kvasir {
namespace {

using Names = std::vector<std::string>;

std::string FaultSource(const std::string& path) {
  std::ifstream file(KVASIR_SOURCE_DIR "/" + path);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

// Returns what the pattern captures in the text between two marks.
Names NamesBetween(const std::string& text, std::string_view begin, std::string_view end,
                   const std::string& pattern) {
  const size_t first = text.find(begin), last = text.find(end, first);
  EXPECT_TRUE(first != text.npos && last != text.npos) << begin;
  if (last == text.npos) return {};
  const std::string part = text.substr(first, last - first);
  const std::regex regex(pattern);
  Names names;
  for (std::sregex_iterator at(part.begin(), part.end(), regex), none; at != none; ++at) {
    names.push_back((*at)[1]);
  }
  return names;
}

// Returns "stale-block" of "kStaleBlock".
std::string DashedName(std::string_view name) {
  std::string dashed;
  for (const char c : name.substr(1)) {
    if (c >= 'A' && c <= 'Z') dashed += dashed.empty() ? "" : "-";
    dashed += static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  }
  return dashed;
}

TEST(Fault, NamesForUsersAreThoseOfTheCode) {
  const Names known = NamesBetween(FaultSource("src/base/fault.h"), "  kNone,",
                                   "for its tests alone", R"(\n  (k\w+),)");
  ASSERT_GT(known.size(), 20u);
  std::string all;
  for (const std::string& name : known) {
    const std::string dashed = DashedName(name);
    EXPECT_TRUE(ParseFault(dashed)) << name;
    EXPECT_NE((", " + FaultNames() + ",").find(", " + dashed + ","), std::string::npos) << dashed;
    all += (all.empty() ? "" : ", ") + dashed;
  }
  EXPECT_EQ(FaultNames().size(), all.size()) << "it lists others";
  EXPECT_FALSE(ParseFault("system-hoisted")) << "a fault for tests alone";
  EXPECT_FALSE(ParseFault(""));
  EXPECT_FALSE(ParseFault("none"));
}

// Checks the last two groups, which decide no KV: docs/testing.md says which test finds each.
TEST(Fault, MutantsInTheDocsAreThoseOfTheCode) {
  Names code =
      NamesBetween(FaultSource("src/base/fault.h"), "// The KV events'", "};", R"(\n  (k\w+),)");
  std::ranges::sort(code);
  // The table ends the page.
  Names docs = NamesBetween(FaultSource("docs/testing.md") + "END", "| mutant |", "END",
                            R"(\n\| `(\w+)` \|)");
  std::ranges::sort(docs);
  EXPECT_GE(code.size(), 5u);
  EXPECT_EQ(docs, code);
}

TEST(Fault, OneIsActiveAtATime) {
  EXPECT_TRUE(FaultActive(Fault::kNone));
  InjectFault(Fault::kStaleBlock);
  EXPECT_TRUE(FaultActive(Fault::kStaleBlock));
  InjectFault(Fault::kLaneOrder);
  EXPECT_FALSE(FaultActive(Fault::kStaleBlock));
  InjectFault(Fault::kNone);
  EXPECT_FALSE(FaultActive(Fault::kLaneOrder));
}

}  // namespace
}  // namespace kvasir
