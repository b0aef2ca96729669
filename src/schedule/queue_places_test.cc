#include "schedule/queue_places.h"

#include <gtest/gtest.h>

namespace kvasir {
namespace {

constexpr uint64_t kManyBytes = uint64_t{1} << 40;

TEST(QueuePlaces, ATenantAloneMayHaveAll) {
  QueuePlaces places(10, kManyBytes);
  for (int i = 0; i < 10; ++i) {
    EXPECT_FALSE(places.ExceedsShare("a", 1, 5, {}, 0));
    places.Take("a", 1, 5);
  }
  EXPECT_EQ(places.requests(), 10u);
  EXPECT_EQ(places.requests_of("a"), 10u);
  EXPECT_EQ(places.requests_of("b"), 0u);
}

TEST(QueuePlaces, OverHalfEachHasItsShare) {
  QueuePlaces places(12, kManyBytes);
  const TenantTable rules = {{"a", {.weight = 2}}};
  places.Take("b", 1, 5);
  places.Take("a", 5, 5);
  EXPECT_TRUE(places.ExceedsShare("a", 4, 5, rules, 0)) << "two thirds of 12 are 8";
  EXPECT_FALSE(places.ExceedsShare("a", 3, 5, rules, 0));
  EXPECT_FALSE(places.ExceedsShare("b", 3, 5, rules, 0));
  EXPECT_TRUE(places.ExceedsShare("b", 4, 5, rules, 0));
  EXPECT_FALSE(places.ExceedsShare("c", 1, 5, rules, 0)) << "one is always allowed";
  for (int i = 0; i < 5; ++i) places.Give("a", 1);
  EXPECT_FALSE(places.ExceedsShare("b", 11, 5, rules, 0)) << "alone again";
}

TEST(QueuePlaces, BytesAreSharedToo) {
  QueuePlaces places(100, 1000);
  places.Take("b", 1, 10);
  places.Take("a", 1, 300);
  EXPECT_FALSE(places.ExceedsShare("a", 1, 180, {}, 0)) << "half of the memory is free";
  EXPECT_TRUE(places.ExceedsShare("a", 1, 220, {}, 0));
  EXPECT_FALSE(places.ExceedsShare("b", 1, 220, {}, 0));
}

TEST(QueuePlaces, WhoFoundTheQueueFullIsThereForAWhile) {
  QueuePlaces places(10, kManyBytes);
  places.Take("flood", 10, 5);
  places.NoteRefusal("quiet", 1000);
  places.Give("flood", 1);
  EXPECT_TRUE(places.ExceedsShare("flood", 1, 5, {}, 1001)) << "the free place is the other's";
  EXPECT_FALSE(places.ExceedsShare("quiet", 1, 5, {}, 1001));
  EXPECT_FALSE(places.ExceedsShare("flood", 1, 5, {}, 1000 + QueuePlaces::kWantedNs));
  places.NoteRefusal("flood", 1000 + QueuePlaces::kWantedNs);
  EXPECT_FALSE(places.ExceedsShare("flood", 1, 5, {}, 0)) << "forgotten";
}

}  // namespace
}  // namespace kvasir
