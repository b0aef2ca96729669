// What KvCache tells its EvictionPolicy, and what leaves.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "cache/cache_driver_for_test.h"
#include "policy/lru.h"
#include "testing/prefix_replay.h"

namespace kvasir {
namespace {

using enum KvCache::CommitKind;

// An Lru that records the calls it gets.
class Recorder final : public EvictionPolicy {
 public:
  struct Log {
    std::map<BlockId, BlockFacts> known;  // the latest facts
    std::set<BlockId> evictable;
    std::vector<BlockFacts> evicted;
  };
  static inline Log log;

  explicit Recorder(const EvictionLimits& limits) : lru_(limits) { log = {}; }
  void OnInserted(BlockId id, const BlockFacts& facts) override {
    EXPECT_TRUE(log.known.emplace(id, facts).second);
    lru_.OnInserted(id, facts);
  }
  void OnEvictable(BlockId id, const BlockFacts& facts) override {
    EXPECT_TRUE(log.known.contains(id) && log.evictable.insert(id).second);
    log.known[id] = facts;
    lru_.OnEvictable(id, facts);
  }
  void OnHeld(BlockId id) override {
    EXPECT_EQ(log.evictable.erase(id), 1u);
    lru_.OnHeld(id);
  }
  void OnEvicted(BlockId id) override {
    EXPECT_EQ(log.evictable.erase(id), 1u);
    log.evicted.push_back(log.known[id]);
    log.known.erase(id);
    lru_.OnEvicted(id);
  }
  void OnForgotten(BlockId id) override {
    log.evictable.erase(id);
    EXPECT_EQ(log.known.erase(id), 1u);
    lru_.OnForgotten(id);
  }
  std::optional<BlockId> Victim(const EvictionScope& scope) override { return lru_.Victim(scope); }
  bool is_evictable(BlockId id) const override { return lru_.is_evictable(id); }
  uint32_t num_evictable() const override { return lru_.num_evictable(); }
  uint64_t allocated_bytes() const override { return lru_.allocated_bytes(); }
  void CheckInvariants() const override { lru_.CheckInvariants(); }

 private:
  Lru lru_;
};

constexpr EvictionChoice kRecorder{
    .name = "recorder",
    .bytes_for = Lru::BytesFor,
    .make = [](const EvictionLimits& limits) -> std::unique_ptr<EvictionPolicy> {
      return std::make_unique<Recorder>(limits);
    }};

class KvCacheEvictionTest : public KvCacheTest {
 protected:
  void SetUp() override { MakeWith(8); }
  void MakeWith(uint32_t num_blocks) {
    driver_ = std::make_unique<CacheDriver>(OptionsFor(num_blocks, 16, &kRecorder));
    ns_ = cache().EnterNamespace("alice", IdentityNamed(1));
  }
  // Returns the facts of the blocks that are known, by depth (one chain).
  std::vector<BlockFacts> ByDepth() {
    std::vector<BlockFacts> facts(Recorder::log.known.size());
    for (const auto& [id, known] : Recorder::log.known) facts.at(known.depth - 1) = known;
    return facts;
  }
};

TEST_F(KvCacheEvictionTest, TellsWhatAPolicyDecidesOn) {
  const Tokens prompt = TokensFrom(1, 40);
  Run(prompt);
  ASSERT_EQ(Recorder::log.known.size(), 3u);
  EXPECT_EQ(Recorder::log.evictable.size(), 1u) << "the tail alone is a leaf";
  for (const BlockFacts& facts : ByDepth()) {
    EXPECT_EQ(facts.ns, ns_);
    EXPECT_EQ(facts.group, LayerGroupId{0});
    EXPECT_EQ(facts.bytes, cache().layout().block_bytes());
    EXPECT_EQ(facts.hits, 0u);
  }
  Run(prompt);
  Run(First(prompt, 20));  // all of the first block, and a part of the second
  Run(TokensFrom(2, 8 * 16));
  // All blocks of the first prompt were evicted, its end first, each with its hits and last use.
  ASSERT_EQ(Recorder::log.evicted.size(), 3u);
  const auto& evicted = Recorder::log.evicted;
  for (uint32_t i = 0; i < 3; ++i) EXPECT_EQ(evicted[i].depth, 3 - i);
  EXPECT_EQ(evicted[0].hits, 1u);
  EXPECT_EQ(evicted[1].hits, 2u);
  EXPECT_EQ(evicted[2].hits, 2u);
  EXPECT_LT(evicted[0].last_use, evicted[1].last_use);
  EXPECT_LT(evicted[1].last_use, evicted[2].last_use);
}

TEST_F(KvCacheEvictionTest, ABlockThatComesBackHasItsContentAndStartsAnew) {
  const Tokens prompt = TokensFrom(1, 32);
  Run(prompt);
  Run(prompt);
  const std::vector<BlockFacts> before = ByDepth();
  ASSERT_EQ(before.size(), 2u);
  EXPECT_EQ(before[1].hits, 1u);
  EXPECT_NE(before[0].content, before[1].content);
  Run(TokensFrom(2, 8 * 16));
  Run(prompt);  // takes two blocks of the other
  std::set<uint64_t> contents;
  for (const auto& [id, facts] : Recorder::log.known) {
    contents.insert(facts.content);
    if (facts.content == before[1].content) {
      EXPECT_EQ(facts.hits, 0u);
    }
  }
  EXPECT_TRUE(contents.contains(before[0].content) && contents.contains(before[1].content));
  const NamespaceId bob = cache().EnterNamespace("bob", IdentityNamed(1));
  driver_->Run(bob, 8, prompt);
  uint32_t of_bob = 0;
  for (const auto& [id, facts] : Recorder::log.known) {
    if (facts.ns != bob) continue;
    ++of_bob;
    EXPECT_FALSE(contents.contains(facts.content)) << "the same tokens of another tenant";
  }
  EXPECT_EQ(of_bob, 2u);
}

TEST_F(KvCacheEvictionTest, ForgetsWhatIsErasedAndWhatALongerBlockReplaces) {
  KvSequence sequence = Run(TokensFrom(1, 40));
  ASSERT_TRUE(driver_->Append(sequence, 7, TokensFrom(2, 8)));  // fills the tail's place
  EXPECT_EQ(Recorder::log.known.size(), 3u);
  EXPECT_TRUE(Recorder::log.evicted.empty());
  cache().Forget(ns_);
  EXPECT_TRUE(Recorder::log.known.empty());
  sequence = KvSequence();
  EXPECT_TRUE(Recorder::log.evictable.empty());
  EXPECT_TRUE(Recorder::log.evicted.empty());
}

TEST_F(KvCacheEvictionTest, ASharedPrefixIsOfferedWhenItsLastSuccessorIsGone) {
  const Tokens prefix = TokensFrom(1, 16);
  Run(Join(prefix, TokensFrom(2, 16)));
  Run(Join(prefix, TokensFrom(3, 16)));
  EXPECT_EQ(Recorder::log.evictable.size(), 2u);
  Run(TokensFrom(4, 6 * 16));
  EXPECT_EQ(Recorder::log.evicted.size(), 1u);
  Run(TokensFrom(5, 16));
  ASSERT_EQ(Recorder::log.evicted.size(), 2u);
  EXPECT_EQ(Recorder::log.evicted[1].depth, 2u);
  Run(TokensFrom(6, 16));
  ASSERT_EQ(Recorder::log.evicted.size(), 3u);
  EXPECT_EQ(Recorder::log.evicted[2].depth, 1u);
  EXPECT_EQ(Recorder::log.evicted[2].hits, 1u);
}

TEST(KvCachePlan, CountsTheBytesOfTheChosenPolicy) {
  for (const EvictionChoice& choice : EvictionChoices()) {
    KvCacheOptions options = OptionsFor(100, 16, &choice);
    options.max_blocks = 100;
    const auto cache = KvCache::Create(options);
    ASSERT_TRUE(cache);
    (*cache)->CheckInvariants();  // planned bytes are the allocated ones
    KvCacheOptions other = options;
    other.eviction = &DefaultEvictionChoice();
    const EvictionLimits limits{.num_blocks = 100, .num_namespaces = 17, .num_groups = 1};
    EXPECT_EQ(KvCache::Plan(options).index_bytes - choice.bytes_for(limits),
              KvCache::Plan(other).index_bytes - other.eviction->bytes_for(limits));
  }
}

TEST(PrefixReplay, CountsBlocksFoundAndEvicted) {
  const std::vector<std::vector<uint32_t>> prompts = {{1, 2, 3},    {1, 2, 4}, {1, 2, 3},
                                                      {5, 6, 7, 8}, {1, 2},    {}};
  const EvictionChoice& lru = *FindEvictionChoice("lru");
  const auto roomy = ReplayPrefixes(prompts, 10, lru);
  ASSERT_TRUE(roomy);
  EXPECT_EQ(roomy->blocks, 15u);
  EXPECT_EQ(roomy->hits, 0u + 2 + 3 + 0 + 2);
  EXPECT_EQ(roomy->evictions, 0u);
  const auto tight = ReplayPrefixes(prompts, 4, lru);
  ASSERT_TRUE(tight);
  EXPECT_EQ(tight->hits, 0u + 2 + 3 + 0 + 0);
  EXPECT_EQ(tight->evictions, 4u + 2);
  EXPECT_EQ(ReplayPrefixes(prompts, 3, lru).error().code, Code::kExhausted);
  EXPECT_EQ(ReplayPrefixes(prompts, 1, lru).error().code, Code::kInvalidArgument);
}

}  // namespace
}  // namespace kvasir
