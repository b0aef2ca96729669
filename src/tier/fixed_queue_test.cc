#include "tier/fixed_queue.h"

#include <gtest/gtest.h>

#include <deque>

#include "base/random.h"

namespace kvasir {
namespace {

TEST(FixedQueue, DoesWhatADequeDoes) {
  constexpr uint32_t kMost = 5;
  constexpr uint64_t kSeed = 8;
  SCOPED_TRACE(kSeed);
  Arena planned;
  const FixedQueue counted(planned, kMost);
  auto arena = Arena::Create(planned.used());
  ASSERT_TRUE(arena);
  FixedQueue queue(*arena, kMost);
  EXPECT_EQ(arena->used(), arena->size());
  std::deque<uint32_t> twin;
  Random random(kSeed);
  for (uint32_t step = 0; step < 5000; ++step) {
    const uint64_t draw = random.Below(40);
    if (draw == 0) {
      queue.Clear();
      twin.clear();
    } else if (draw < 16 && twin.size() < kMost) {
      queue.PushBack(step);
      twin.push_back(step);
    } else if (draw < 24 && twin.size() < kMost) {
      queue.PushFront(step);
      twin.push_front(step);
    } else if (!twin.empty()) {
      ASSERT_EQ(queue.PopFront(), twin.front());
      twin.pop_front();
    }
    ASSERT_EQ(queue.size(), twin.size());
    ASSERT_EQ(queue.empty(), twin.empty());
    for (uint32_t i = 0; i < twin.size(); ++i) ASSERT_EQ(queue.at(i), twin[i]) << i;
  }
}

}  // namespace
}  // namespace kvasir
