#include "cache/tier_offer.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "cache/cache_driver_for_test.h"
#include "cache/record_names.h"
#include "tier/far_tier_for_test.h"
#include "tier/tier_driver_for_test.h"

namespace kvasir {
namespace {

constexpr uint64_t kOfferPayload = 8;

// A pool's index and a tier that have parts of one prompt of four blocks and five tokens.
class TierOfferTest : public testing::Test {
 protected:
  static constexpr uint32_t kTokens = 16, kPrompt = 4 * kTokens + 5;

  explicit TierOfferTest(KvLayout layout = TinyLayout())
      : layout_(std::move(layout)),
        index_({.num_blocks = 16,
                .block_tokens = kTokens,
                .num_nodes = 16,
                .num_groups = layout_.num_groups(),
                .seed = 3}),
        root_(index_.AddRoot(BlockKey{5})) {
    keys_.push_back(index_.key(root_));
    for (uint32_t b = 0; b < 4; ++b) keys_.push_back(index_.NextKey(root_, keys_[b], Block(b)));
  }

  std::span<const TokenId> Block(uint32_t block) const {
    return std::span(prompt_).subspan(size_t{block} * kTokens, kTokens);
  }
  // Stores a block's record of a group in a tier.
  void Store(Tier& tier, uint32_t block, uint32_t group = 0) {
    const RecordFacts facts = RecordFactsOf(layout_, keys_[block + 1], keys_[block], block == 0,
                                            group, Block(block), Digest{});
    ASSERT_TRUE(tier.ReadyOwner(facts.owner));
    const auto write = tier.BeginWrite(facts);
    ASSERT_TRUE(write);
    tier.Seal(*write, std::vector<std::byte>(kOfferPayload));
    tier.EndWrite(*write);
    ASSERT_TRUE(TierDriver(tier).Flush());
  }
  // Puts a block into the pool, with the KV of these groups.
  void Compute(uint32_t block, const std::vector<uint32_t>& groups = {0}) {
    const NodeId node = index_.Insert(block == 0 ? root_ : path_.back(), Block(block));
    for (const uint32_t group : groups) index_.SetBlock(node, group, BlockId{num_blocks_++});
    path_.push_back(node);
  }
  TierOffer Offer(uint32_t num_reused = 0, size_t num_tokens = kPrompt, bool has_remote = true,
                  const Tier* tier = nullptr) const {
    return FindOffer({.tier = tier != nullptr ? *tier : tier_, .has_remote = has_remote}, index_,
                     layout_, root_, std::span(prompt_).first(num_tokens), path_, num_reused);
  }
  using Places = std::vector<std::pair<uint32_t, uint16_t>>;  // block and group
  static Places PlacesOf(const TierOffer& offer) {
    Places places;
    for (const TierOffer::Record& record : offer.records) {
      places.emplace_back(record.block, record.group);
    }
    return places;
  }

  const KvLayout layout_;
  const Tokens prompt_ = TokensFrom(9, kPrompt);
  PrefixIndex index_;
  const NodeId root_;
  std::vector<BlockKey> keys_;  // of the root, then of the blocks
  std::vector<NodeId> path_;
  uint32_t num_blocks_ = 0;
  MemoryTier tier_{{.payload_bytes = kOfferPayload}};
};

TEST_F(TierOfferTest, OffersTheLongestBeginningThatTheTierHas) {
  EXPECT_TRUE(Offer().empty());
  for (uint32_t b = 0; b < 3; ++b) Store(tier_, b);
  const TierOffer offer = Offer();
  EXPECT_EQ(offer.first_block, 0u);
  EXPECT_EQ(offer.end_block, 3u);
  EXPECT_EQ(offer.keys, (std::vector<BlockKey>(keys_.begin(), keys_.begin() + 4)));
  EXPECT_EQ(PlacesOf(offer), (Places{{0, 0}, {1, 0}, {2, 0}}));
  EXPECT_EQ(offer.records[0].from, TierKind::kDisk);
}

TEST_F(TierOfferTest, TheLastTokenIsComputedInAnyCase) {
  for (uint32_t b = 0; b < 4; ++b) Store(tier_, b);
  EXPECT_EQ(Offer(0, 4 * kTokens + 1).end_block, 4u);
  EXPECT_EQ(Offer(0, 4 * kTokens).end_block, 3u);
  EXPECT_TRUE(Offer(0, kTokens).empty());
  EXPECT_TRUE(Offer(0, 1).empty());
}

TEST_F(TierOfferTest, BeginsWhereThePoolEnds) {
  for (uint32_t b = 0; b < 4; ++b) Store(tier_, b);
  Compute(0);
  Compute(1);
  const TierOffer offer = Offer(2 * kTokens + 3);  // a part of a block is matched too
  EXPECT_EQ(offer.first_block, 2u);
  EXPECT_EQ(offer.end_block, 4u);
  EXPECT_EQ(offer.keys, (std::vector<BlockKey>(keys_.begin() + 2, keys_.end())));
  EXPECT_EQ(PlacesOf(offer), (Places{{2, 0}, {3, 0}}));
}

TEST_F(TierOfferTest, RecordsThatTheStoreFarAwayHasMayNotCount) {
  FarTier far({.memory = {.payload_bytes = kOfferPayload}});
  LookFor look;
  for (uint32_t b = 0; b < 2; ++b) {
    Store(far, b);
    look.names.push_back(RecordNameOf(layout_, keys_[b + 1], 0));
  }
  ASSERT_TRUE(far.Look(look, [] {}));
  const TierOffer offer = Offer(0, kPrompt, /*has_remote=*/true, &far);
  ASSERT_EQ(offer.records.size(), 2u);
  EXPECT_EQ(offer.records[1].from, TierKind::kRemote);
  EXPECT_TRUE(Offer(0, kPrompt, /*has_remote=*/false, &far).empty());
}

// Group 0 is full, group 1 sees 20 tokens.
class TierOfferOfWindows : public TierOfferTest {
 protected:
  TierOfferOfWindows() : TierOfferTest(LayoutOf({0, 20})) {}
};

TEST_F(TierOfferOfWindows, AWindowNeedsOnlyTheBlocksThatTheNextTokenSees) {
  for (uint32_t b = 0; b < 4; ++b) Store(tier_, b, 0);
  EXPECT_TRUE(Offer().empty()) << "no window can go on anywhere";
  for (const uint32_t b : {1, 2}) Store(tier_, b, 1);
  EXPECT_EQ(PlacesOf(Offer()), (Places{{0, 0}, {1, 0}, {1, 1}, {2, 0}, {2, 1}}));
  Store(tier_, 3, 1);
  EXPECT_EQ(PlacesOf(Offer()), (Places{{0, 0}, {1, 0}, {2, 0}, {2, 1}, {3, 0}, {3, 1}}))
      << "token 64 sees 45 to 63";
}

TEST_F(TierOfferOfWindows, ThePoolMayHaveAPartOfThem) {
  for (uint32_t b = 0; b < 4; ++b) Store(tier_, b, 0);
  Store(tier_, 3, 1);
  Compute(0, {0});
  Compute(1, {0});
  Compute(2, {0, 1});
  EXPECT_EQ(PlacesOf(Offer()), (Places{{3, 0}, {3, 1}})) << "the pool has the rest";
  Compute(3, {0, 1});
  EXPECT_TRUE(Offer().empty()) << "the pool has it all";
}

}  // namespace
}  // namespace kvasir
