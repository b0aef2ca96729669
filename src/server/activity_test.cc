#include "server/activity.h"

#include <gtest/gtest.h>

#include <chrono>

#include "base/own_clock.h"

namespace kvasir {
namespace {

TEST(Activity, AnHourHasItsLastSixtyMinutes) {
  OwnClock clock;
  Activity activity;
  const Receipt half{.prompt_tokens = 10, .computed = 5, .reused_pool = 5};
  const Receipt cold{.prompt_tokens = 7, .computed = 7};
  activity.Add("a", half, 3);
  clock.Advance(std::chrono::minutes(1));
  activity.Add("a", cold, 1);
  activity.Add("b", cold, 1);
  LastHour hour = activity.HourOf("a");
  EXPECT_EQ(hour.sums.answers, 2u);
  EXPECT_EQ(hour.sums.prompt, 17u);
  EXPECT_EQ(hour.sums.computed, 12u);
  EXPECT_EQ(hour.sums.generated, 4u);
  EXPECT_EQ(hour.minutes[59].prompt, 7u);
  EXPECT_EQ(hour.minutes[58].prompt, 10u);
  EXPECT_EQ(hour.minutes[58].reused, 5u);
  EXPECT_EQ(activity.HourOf(std::nullopt).sums.prompt, 24u);
  EXPECT_EQ(activity.HourOf("c").sums.answers, 0u);

  clock.Advance(std::chrono::minutes(59));
  hour = activity.HourOf("a");
  EXPECT_EQ(hour.sums.prompt, 7u) << "the first answer is an hour old";
  EXPECT_EQ(hour.minutes[0].prompt, 7u);
  activity.Add("a", half, 3);
  EXPECT_EQ(activity.HourOf("a").sums.prompt, 17u) << "a minute takes the place of an old one";
  clock.Advance(std::chrono::hours(5));
  EXPECT_EQ(activity.HourOf("a").sums.answers, 0u);
  EXPECT_EQ(activity.Of("a").answers, 3u) << "the sums stay";
}

}  // namespace
}  // namespace kvasir
