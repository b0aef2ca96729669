#include "cache/write_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/random.h"

namespace kvasir {
namespace {

// A block and its ticket.
struct WaitingBlock {
  BlockId block;
  uint64_t ticket;
};

TEST(WriteQueue, DoesWhatAListDoes) {
  constexpr uint32_t kBlocks = 7, kSeed = 41;
  SCOPED_TRACE(kSeed);
  Random random(kSeed);
  WriteQueue queue(kBlocks);
  std::vector<WaitingBlock> twin;
  uint64_t tickets = 0;
  for (int step = 0; step < 5000; ++step) {
    const BlockId block{static_cast<uint32_t>(random.Below(kBlocks))};
    const auto found = std::ranges::find(twin, block, &WaitingBlock::block);
    if (random.Below(2) == 0) {
      queue.Push(block);
      if (found == twin.end()) twin.push_back({block, ++tickets});
    } else {
      queue.Remove(block);
      if (found != twin.end()) twin.erase(found);
    }
    ASSERT_EQ(queue.size(), twin.size());
    ASSERT_EQ(queue.last_ticket(), tickets);
    ASSERT_EQ(queue.front().has_value(), !twin.empty());
    if (!twin.empty()) {
      ASSERT_EQ(*queue.front(), twin.front().block);
    }
    for (uint32_t i = 0; i < kBlocks; ++i) {
      const bool waits = std::ranges::count(twin, BlockId{i}, &WaitingBlock::block) > 0;
      ASSERT_EQ(queue.Contains(BlockId{i}), waits) << i;
    }
    // What was put in up to a ticket has left when no block of a lower one waits.
    const uint64_t ticket = random.Below(tickets + 1);
    const bool has_passed =
        std::ranges::none_of(twin, [&](const auto& one) { return one.ticket <= ticket; });
    ASSERT_EQ(queue.HasPassed(ticket), has_passed) << ticket;
  }
}

TEST(WriteQueue, ABlockThatWaitsKeepsItsPlace) {
  WriteQueue queue(3);
  for (const uint32_t block : {2, 0, 1, 2}) queue.Push(BlockId{block});
  EXPECT_EQ(queue.size(), 3u);
  std::vector<BlockId> order;
  while (const auto front = queue.front()) {
    order.push_back(*front);
    queue.Remove(*front);
  }
  EXPECT_EQ(order, (std::vector{BlockId{2}, BlockId{0}, BlockId{1}}));
}

}  // namespace
}  // namespace kvasir
