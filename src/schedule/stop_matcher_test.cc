#include "schedule/stop_matcher.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/random.h"

namespace kvasir {
namespace {

struct Cut {
  std::string text;
  std::optional<std::string> match;
};

Cut InPieces(const std::string& text, const std::vector<std::string>& stops, Random& random) {
  StopMatcher matcher(stops);
  Cut cut;
  for (size_t begin = 0; begin < text.size();) {
    const size_t size = std::min<size_t>(random.Below(4), text.size() - begin);
    const auto match = matcher.Append(std::string_view(text).substr(begin, size), &cut.text);
    begin += size;
    if (match) {
      cut.match = std::string(*match);
      EXPECT_EQ(matcher.Append("more", &cut.text), std::nullopt);
      break;
    }
  }
  matcher.Finish(&cut.text);
  return cut;
}

// Cuts at the match that ends first, the longest of those.
Cut Naive(const std::string& text, const std::vector<std::string>& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    const std::string* match = nullptr;
    for (const std::string& stop : stops) {
      if (!std::string_view(text).substr(0, end).ends_with(stop)) continue;
      if (match == nullptr || stop.size() > match->size()) match = &stop;
    }
    if (match != nullptr) return {text.substr(0, end - match->size()), *match};
  }
  return {text, std::nullopt};
}

std::string RandomText(size_t size, Random& random) {
  std::string text;
  while (text.size() < size) text += "ab\n"[random.Below(3)];
  return text;
}

TEST(StopMatcher, EqualsANaiveSearchHoweverTheTextIsCut) {
  const uint64_t seed = 5;
  Random random(seed);
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::string> stops(random.Below(4));
    for (std::string& stop : stops) stop = RandomText(1 + random.Below(5), random);
    const std::string text = RandomText(random.Below(30), random);
    const Cut want = Naive(text, stops);
    const Cut got = InPieces(text, stops, random);
    ASSERT_EQ(got.text, want.text) << "seed " << seed << " round " << round;
    ASSERT_EQ(got.match, want.match) << "seed " << seed << " round " << round;
  }
}

TEST(StopMatcher, HoldsBackOnlyWhatMayBeginAStop) {
  const std::vector<std::string> stops = {"</end>", "Ende"};
  StopMatcher matcher(stops);
  std::string out;
  EXPECT_EQ(matcher.Append("Das <", &out), std::nullopt);
  EXPECT_EQ(out, "Das ");
  EXPECT_EQ(matcher.Append("/b> E", &out), std::nullopt);
  EXPECT_EQ(out, "Das </b> ");
  EXPECT_EQ(matcher.Append("nd", &out), std::nullopt);
  EXPECT_EQ(out, "Das </b> ");
  EXPECT_EQ(matcher.Append("e!", &out), "Ende");
  EXPECT_EQ(out, "Das </b> ");
}

TEST(StopMatcher, NeverCutsACharacter) {
  const std::vector<std::string> stops = {"é!"};
  StopMatcher matcher(stops);
  std::string out;
  EXPECT_EQ(matcher.Append("è", &out), std::nullopt);  // shares é's first byte
  EXPECT_EQ(out, "è");
  EXPECT_EQ(matcher.Append("é", &out), std::nullopt);
  EXPECT_EQ(out, "è");
  matcher.Finish(&out);
  EXPECT_EQ(out, "èé");
}

}  // namespace
}  // namespace kvasir
