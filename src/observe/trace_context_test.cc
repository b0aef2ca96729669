#include "observe/trace_context.h"

#include <gtest/gtest.h>

#include <string>

namespace kvasir {
namespace {

const std::string kTrace = "4bf92f3577b34da6a3ce929d0e0e4736", kParent = "00f067aa0ba902b7";

TEST(TraceContext, ReadsTheSpecificationsExample) {
  const auto context = ParseTraceparent("00-" + kTrace + "-" + kParent + "-01");
  ASSERT_TRUE(context);
  EXPECT_EQ(context->trace[0], 0x4b);
  EXPECT_EQ(context->trace[15], 0x36);
  EXPECT_EQ((*context->parent)[1], 0xf0);
  EXPECT_TRUE(context->sampled);
  EXPECT_FALSE(ParseTraceparent("00-" + kTrace + "-" + kParent + "-00")->sampled);
}

TEST(TraceContext, LaterVersionsMayGoOn) {
  EXPECT_TRUE(ParseTraceparent("01-" + kTrace + "-" + kParent + "-01-more"));
  EXPECT_FALSE(ParseTraceparent("01-" + kTrace + "-" + kParent + "-01more"));
  EXPECT_FALSE(ParseTraceparent("00-" + kTrace + "-" + kParent + "-01-more"));
}

TEST(TraceContext, RefusesWhatIsBroken) {
  const std::string zeros(32, '0');
  for (const std::string& header :
       {std::string(), std::string("00"), "ff-" + kTrace + "-" + kParent + "-01",
        "00-" + zeros + "-" + kParent + "-01", "00-" + kTrace + "-" + zeros.substr(16) + "-01",
        "00-" + std::string("4BF92F3577B34DA6A3CE929D0E0E4736") + "-" + kParent + "-01",
        "00-" + kTrace + "-" + kParent + "-0g", "00_" + kTrace + "-" + kParent + "-01",
        "00-" + kTrace + "-" + kParent + "\r\n01", "00-" + kTrace + "-" + kParent + "-1"}) {
    EXPECT_FALSE(ParseTraceparent(header)) << header;
  }
}

TEST(TraceContext, SamplesTheShareThatWasAskedFor) {
  int sampled = 0;
  for (int i = 0; i < 2000; ++i) {
    const auto context = ContextOf("", 0.25);
    ASSERT_TRUE(context);
    EXPECT_FALSE(context->parent);
    sampled += context->sampled;
  }
  EXPECT_NEAR(sampled, 500, 120);  // six standard deviations
  EXPECT_TRUE(ContextOf("", 1)->sampled);
  EXPECT_FALSE(ContextOf("", 0)->sampled);
}

TEST(TraceContext, TheCallerDecidesWhereThereIsOne) {
  EXPECT_TRUE(ContextOf("00-" + kTrace + "-" + kParent + "-01", 0)->sampled);
  EXPECT_FALSE(ContextOf("00-" + kTrace + "-" + kParent + "-00", 1)->sampled);
}

}  // namespace
}  // namespace kvasir
