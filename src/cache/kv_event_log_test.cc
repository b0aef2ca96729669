#include "cache/kv_event_log.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <span>
#include <vector>

namespace kvasir {
namespace {

constexpr uint32_t kLogBlock = 4, kLogNodes = 64;  // nodes: as many events as the ring has

// An index with a published root and one that is not.
class KvEventLogTest : public testing::Test {
 protected:
  // An event as a reader sees it.
  struct Told {
    bool is_stored;
    NodeId node;
    uint32_t parent;
    std::vector<TokenId> tokens;
    bool operator==(const Told&) const = default;
  };

  KvEventLogTest() {
    log_.SetPublished(root_, true);
    log_.set_wake([this] { ++num_wakes_; });
  }

  static BlockKey KeyOfByte(uint8_t byte) {
    BlockKey key;
    key.fill(byte);
    return key;
  }
  NodeId Store(NodeId parent, const std::vector<TokenId>& tokens) {
    const NodeId node = index_.Insert(parent, tokens);
    log_.OnStored(index_, node);
    return node;
  }
  std::vector<Told> Take() {
    std::vector<Told> told;
    log_.Take([&](const KvEventLog::Event& event, std::span<const TokenId> tokens) {
      EXPECT_EQ(event.key, index_.key(NodeId{event.node}));
      told.push_back({event.is_stored, NodeId{event.node}, event.parent,
                      std::vector<TokenId>(tokens.begin(), tokens.end())});
    });
    return told;
  }
  void FillRing(NodeId node, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) log_.OnStored(index_, node);
  }

  static constexpr uint32_t kNoParent = KvEventMirror::kNoParent;
  static constexpr KvEventLog::Options kOptions{
      .num_nodes = kLogNodes, .block_tokens = kLogBlock, .num_roots = 4, .owner = {}};
  PrefixIndex index_{
      {.num_blocks = kLogNodes, .block_tokens = kLogBlock, .num_nodes = kLogNodes, .seed = 42}};
  const NodeId root_ = index_.AddRoot(KeyOfByte(1)), other_ = index_.AddRoot(KeyOfByte(2));
  KvEventLog log_{kOptions};
  KvEventMirror mirror_{kLogNodes, kLogBlock};
  int num_wakes_ = 0;
};

TEST_F(KvEventLogTest, TellsWhatCameAndWentInItsOrder) {
  const std::vector<TokenId> one = {1, 2, 3, 4}, two = {5, 6, 7, 8}, none(kLogBlock);
  const NodeId parent = Store(root_, one);
  const NodeId child = Store(parent, two);
  log_.OnRemoved(index_, child);
  const std::vector<Told> told = Take();
  ASSERT_EQ(told.size(), 3u);
  EXPECT_EQ(told[0], (Told{true, parent, kNoParent, one}));
  EXPECT_EQ(told[1], (Told{true, child, static_cast<uint32_t>(parent), two}));
  EXPECT_EQ(told[2], (Told{false, child, static_cast<uint32_t>(parent), none}));
  EXPECT_EQ(Take(), std::vector<Told>{});
}

TEST_F(KvEventLogTest, TellsOfWholeBlocksUnderPublishedRootsAlone) {
  Store(root_, {1, 2});
  const NodeId hidden = Store(other_, {1, 2, 3, 4});
  EXPECT_EQ(Take(), std::vector<Told>{});
  log_.Tell();
  EXPECT_EQ(num_wakes_, 0);
  log_.SetPublished(other_, true);
  log_.OnStored(index_, hidden);
  EXPECT_EQ(Take().size(), 1u);
}

TEST_F(KvEventLogTest, WakesTheReaderOnceForAllThatHappened) {
  const NodeId node = Store(root_, {1, 2, 3, 4});
  log_.OnRemoved(index_, node);
  log_.Tell();
  log_.Tell();
  EXPECT_EQ(num_wakes_, 1);
}

TEST_F(KvEventLogTest, AFullRingLosesAllUntilTheReaderGotTheWholeIndex) {
  const NodeId node = Store(root_, {1, 2, 3, 4});
  Store(root_, {9});
  Store(other_, {1, 2, 3, 4});
  FillRing(node, kLogNodes - 1);
  EXPECT_FALSE(log_.is_lost());
  FillRing(node, 1);
  EXPECT_TRUE(log_.is_lost());
  EXPECT_EQ(Take().size(), kLogNodes);
  FillRing(node, 1);
  EXPECT_EQ(log_.num_lost(), 2u) << "there is room, but one before it was lost";
  EXPECT_EQ(Take(), std::vector<Told>{});
  log_.Fill(index_, &mirror_);
  EXPECT_FALSE(log_.is_lost());
  EXPECT_EQ(log_.num_fills(), 1u);
  EXPECT_EQ(mirror_.num_here(), 1u);
  EXPECT_TRUE(mirror_.at(static_cast<uint32_t>(node)).is_here);
  EXPECT_EQ(mirror_.at(static_cast<uint32_t>(node)).parent, kNoParent);
  FillRing(node, 1);
  EXPECT_EQ(Take().size(), 1u);
}

TEST_F(KvEventLogTest, WipesTheTokensThatWereTaken) {
  const NodeId node = Store(root_, {1, 2, 3, 4});
  FillRing(node, kLogNodes - 1);
  EXPECT_EQ(Take().size(), kLogNodes);
  log_.OnRemoved(index_, node);  // its tokens are what its place in the ring has
  EXPECT_EQ(Take()[0].tokens, std::vector<TokenId>(kLogBlock));
}

TEST_F(KvEventLogTest, CountsErasesOfPublishedTextAtBothEnds) {
  log_.OnEraseBegins(other_);
  log_.OnEraseEnds(other_);
  EXPECT_EQ(log_.num_erases(), 0u);
  log_.OnEraseBegins(root_);
  EXPECT_EQ(log_.num_erases(), 1u);
  EXPECT_EQ(log_.num_erases_ended(), 0u);
  log_.OnEraseEnds(root_);
  EXPECT_EQ(log_.num_erases_ended(), 1u);
  log_.Tell();
  EXPECT_EQ(num_wakes_, 1);
}

TEST_F(KvEventLogTest, AnotherOwnerIsAnEraseAndASnapshot) {
  Store(root_, {1, 2, 3, 4});
  const NodeId others = Store(other_, {1, 2, 3, 4});
  log_.SetOwner(KeyOfByte(7), [&] {
    EXPECT_EQ(log_.num_erases(), 1u);
    EXPECT_EQ(log_.num_erases_ended(), 0u);
    log_.SetPublished(root_, false);
    log_.SetPublished(other_, true);
  });
  EXPECT_EQ(log_.num_erases_ended(), 1u);
  EXPECT_TRUE(log_.is_lost());
  EXPECT_EQ(log_.owner(), KeyOfByte(7));
  log_.Fill(index_, &mirror_);
  EXPECT_EQ(mirror_.num_here(), 1u);
  EXPECT_TRUE(mirror_.at(static_cast<uint32_t>(others)).is_here);
}

TEST_F(KvEventLogTest, TakesTheMemoryThatWasPlanned) {
  EXPECT_EQ(log_.allocated_bytes(), KvEventLog::BytesFor(kOptions));
  EXPECT_EQ(mirror_.allocated_bytes(), KvEventMirror::BytesFor(kLogNodes, kLogBlock));
}

}  // namespace
}  // namespace kvasir
