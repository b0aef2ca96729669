#include "block/layer_group.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/random.h"

namespace kvasir {
namespace {

constexpr auto kFull = KvReach::Kind::kFull;
constexpr auto kWindow = KvReach::Kind::kWindow;
constexpr auto kCross = KvReach::Kind::kCross;

void ExpectRefused(const std::vector<LayerGroup>& groups, uint32_t num_layers,
                   const std::string& what) {
  const Status status = CheckLayerGroups(groups, num_layers);
  ASSERT_FALSE(status) << what;
  EXPECT_EQ(status.error().code, Code::kInvalidArgument);
  EXPECT_NE(status.error().message.find(what), std::string::npos) << status.error().message;
}

TEST(LayerGroups, WrongOnesAreRefusedByName) {
  EXPECT_TRUE(CheckLayerGroups(std::vector<LayerGroup>{{{kFull}, {0, 2}}, {{kWindow, 5}, {1}}}, 3));
  ExpectRefused({{{kFull}, {0}}, {{kWindow, 0}, {1}}}, 2, "layer group 1: its window is 0");
  ExpectRefused({{{kFull}, {0, 1}}, {{kWindow, 4}, {}}}, 2, "layer group 1: it has no layers");
  ExpectRefused({{{kFull}, {0, 1}}, {{kWindow, 4}, {1}}}, 2, "layer 1 is in group 0 too");
  ExpectRefused({{{kFull}, {0, 0}}}, 1, "layer 0 is in group 0 too");
  ExpectRefused({{{kFull}, {1, 0}}}, 2, "not ascending");
  ExpectRefused({{{kFull}, {0, 2}}}, 2, "layer 2 is not one of the model's 2");
  ExpectRefused({{{kFull}, {0, 2}}}, 3, "layer 1 is in no group");
}

TEST(LayerGroups, AWindowAsLongAsTheContextIsFull) {
  const std::vector<KvReach> layers = {{kWindow, 64}, {kFull}, {kWindow, 63}};
  const auto groups = GroupLayers(layers, 8, 64);
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].reach, KvReach{kFull});
  EXPECT_EQ(groups[0].layers, (std::vector<uint32_t>{0, 1}));
  EXPECT_EQ(groups[1].layers, (std::vector<uint32_t>{2}));
}

// The same number, by trying every place of the next token in its block.
TEST(LayerGroups, AWindowNeedsTheBlocksOfItsLastTokens) {
  for (uint32_t window = 1; window < 70; ++window) {
    const KvReach reach{kWindow, window};
    for (uint64_t tokens = 1; tokens < 120; ++tokens) {
      uint64_t most = 0;
      for (uint64_t next = 0; next < tokens; ++next) {
        const uint64_t first = next + 1 < window ? 0 : next + 1 - window;
        most = std::max(most, next / 16 - first / 16 + 1);
      }
      EXPECT_LE(most, BlocksFor(reach, tokens, 1, 16)) << window << " " << tokens;
      EXPECT_LE(BlocksFor(reach, tokens, 1, 16), most + 1) << window << " " << tokens;
    }
  }
  EXPECT_EQ(BlocksFor({kFull}, 33, 1, 16), 3u);
  EXPECT_EQ(BlocksFor({kCross}, 32, 1, 16), 2u);
}

TEST(LayerGroups, TheChosenBlocksTakeTheFewestBytes) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Random random(seed);
    std::vector<KvReach> layers(1 + random.Below(24));
    for (KvReach& reach : layers) {
      if (random.Below(2) == 0) reach = {kWindow, 1 + static_cast<uint32_t>(random.Below(3)) * 100};
      if (random.Below(6) == 0) reach = {kCross};
    }
    const GroupingCost cost{.layer_token_bytes = 64 + random.Below(4096),
                            .tokens = 1 + random.Below(5000)};
    const uint32_t slots = ChooseSlots(layers, 4000, cost);
    const auto groups = GroupLayers(layers, slots, 4000);
    EXPECT_TRUE(CheckLayerGroups(groups, static_cast<uint32_t>(layers.size()))) << seed;
    for (const LayerGroup& group : groups) EXPECT_LE(group.layers.size(), slots);
    for (uint32_t other = 1; other <= layers.size(); ++other) {
      EXPECT_LE(SequenceBytes(groups, slots, cost),
                SequenceBytes(GroupLayers(layers, other, 4000), other, cost))
          << seed << " " << other;
    }
  }
}

TEST(LayerGroups, AModelOfOneKindHasOneGroup) {
  const std::vector<KvReach> layers(36);
  const GroupingCost cost{.layer_token_bytes = 4096, .tokens = 1000};
  EXPECT_EQ(ChooseSlots(layers, 4096, cost), 36u);
  EXPECT_EQ(GroupLayers(layers, 36, 4096).size(), 1u);
}

}  // namespace
}  // namespace kvasir
