// What every Tier does: DiskTier, with threads and without, RemoteTier on Redis (raw, compressed,
// TLS, a cluster) and on S3, disk and remote together, and the memory tier of tests.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "remote/remote_store_for_test.h"
#include "remote/remote_tier.h"
#include "tier/disk_tier.h"
#include "tier/memory_tier_for_test.h"
#include "tier/tier_driver_for_test.h"
#include "tier/tier_pair.h"

namespace kvasir {
namespace {

using Read = TierDriver::Read;
constexpr uint32_t kTierTokens = 16;
constexpr uint64_t kTierPayload = 5000;

enum class Kind { kDisk, kDiskOnCaller, kMemory, kRemote, kCompressed, kTls, kCluster, kS3, kPair };

std::vector<Kind> KindsOfThisRun() {
  if (S3Url() != nullptr) return {Kind::kS3};
  return {Kind::kDisk,       Kind::kDiskOnCaller, Kind::kMemory,  Kind::kRemote,
          Kind::kCompressed, Kind::kTls,          Kind::kCluster, Kind::kPair};
}

class TierConformance : public testing::TestWithParam<Kind> {
 protected:
  TierConformance() {
    if (GetParam() == Kind::kMemory) {
      tier_ = std::make_unique<MemoryTier>(
          MemoryTierOptions{.payload_bytes = kTierPayload, .num_buffers = kBuffers});
      driver_ = std::make_unique<TierDriver>(*tier_);
      return;
    }
    if (is_remote()) {
      if (is_skipped()) return;
      OpenRemote();
      if (GetParam() != Kind::kPair || remote_ == nullptr) return;
    }
    std::string pattern = testing::TempDir() + "/kvasir-conformance-XXXXXX";
    folder_ = mkdtemp(pattern.data());
    const bool on_caller = GetParam() == Kind::kDiskOnCaller;
    auto disk =
        DiskTier::Open({.folder = folder_,
                        .cap_bytes = uint64_t{64} << 20,
                        .shape = {.block_tokens = kTierTokens, .payload_bytes = kTierPayload},
                        .threads = on_caller ? 0u : 2u},
                       storage_);
    EXPECT_TRUE(disk) << disk.error().message;
    DiskTier* const one = disk->get();
    tier_ = std::move(*disk);
    if (GetParam() == Kind::kPair) {
      disk_ = std::move(tier_);
      tier_ = std::make_unique<TierPair>(*disk_, *remote_);
    }
    driver_ = std::make_unique<TierDriver>(
        *tier_, on_caller ? std::function<void()>([one] { one->RunPending(); }) : nullptr);
    if (is_remote()) OpenOwners();
  }
  static bool is_remote() { return GetParam() >= Kind::kRemote; }
  static bool is_compressed() { return GetParam() == Kind::kCompressed; }
  // Tells tests of forgets, which list no names, from others: a store alone forgets by name.
  static bool is_skipped() {
    const std::string name = testing::UnitTest::GetInstance()->current_test_info()->name();
    return is_remote() && GetParam() != Kind::kPair && name.starts_with("AForget");
  }
  void OpenRemote() {
    store_ = GetParam() == Kind::kCluster ? RemoteStoreForTest::Cluster()
             : GetParam() == Kind::kS3    ? RemoteStoreForTest::S3()
             : GetParam() == Kind::kTls   ? RemoteStoreForTest::Tls()
                                          : RemoteStoreForTest::Redis();
    if (!store_.is_there()) return;
    auto remote = RemoteTier::Open(
        {.address = store_.address,
         .tls = store_.tls,
         .s3 = store_.s3,
         .memory_bytes = kBuffers * 8192,
         .fleet = TestRecord::Filled(77),
         .identity = TestRecord::Filled(78),
         .shape = {.block_tokens = kTierTokens, .payload_bytes = kTierPayload},
         .num_codecs = is_compressed() ? 1u : 0u,
         .compresses = is_compressed() ? CompressWhen::kAlways : CompressWhen::kNever,
         .stall_ns = 5'000'000'000});
    EXPECT_TRUE(remote) << remote.error().message;
    remote_ = std::move(*remote);
    if (GetParam() == Kind::kPair) return;
    tier_ = std::move(remote_);
    driver_ = std::make_unique<TierDriver>(*tier_);
    OpenOwners();
  }
  // Opens owners and waits until a store that is far away has said what it knows of them.
  void OpenOwners() {
    const Tier& far = remote_ ? *remote_ : *tier_;
    ASSERT_TRUE(driver_->WaitUntil([&] { return far.Stats().state == TierStats::State::kOn; }));
    for (uint32_t owner = 0; owner < 2; ++owner) {
      ASSERT_TRUE(tier_->ReadyOwner(TestRecord::Owner(owner)));
      driver_->Look(Record(0, 0, owner));
    }
  }
  void SetUp() override {
    if (is_skipped()) GTEST_SKIP() << "a store forgets by name: remote_tier_test";
    if (is_remote() && !store_.is_there()) KV_NEEDS("/usr/bin/redis-server");
  }
  ~TierConformance() override {
    tier_.reset();
    disk_.reset();
    remote_.reset();
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
  }
  // Says of a forget what it left: of two tiers the disk, which finds the records by itself.
  bool Has(const RecordName& name) const { return (disk_ ? *disk_ : *tier_).Has(name); }
  Read ReadBack(const TestRecord& record) {
    return disk_ ? TierDriver(*disk_, {}, /*sets_progress=*/false).ReadBack(record)
                 : driver_->ReadBack(record);
  }
  static TestRecord Record(uint32_t chain, uint32_t number, uint32_t owner = 0) {
    TestRecord record(chain, number, owner, kTierTokens, kTierPayload);
    for (size_t i = 1; is_compressed() && i < record.payload.size(); i += 2) {
      record.payload[i] &= std::byte{3};  // as exponents, most bits are alike
    }
    return record;
  }

  static constexpr uint32_t kBuffers = 64;
  std::string folder_;
  RealStorage storage_;
  RemoteStoreForTest store_;
  std::unique_ptr<Tier> tier_, disk_;
  std::unique_ptr<RemoteTier> remote_;
  std::unique_ptr<TierDriver> driver_;
};

INSTANTIATE_TEST_SUITE_P(Each, TierConformance, testing::ValuesIn(KindsOfThisRun()));

TEST_P(TierConformance, GivesBackWhatWasStored) {
  for (uint32_t i = 0; i < 12; ++i) ASSERT_TRUE(driver_->Write(Record(0, i)));
  const auto flushed = driver_->Flush();
  ASSERT_TRUE(flushed);
  EXPECT_LE(flushed->blocks, 12u);  // some may be stored before it is asked for
  if (is_compressed()) {
    EXPECT_EQ(tier_->Stats().written_bytes, 12u * 4096);
  }
  for (uint32_t i = 0; i < 12; ++i) {
    EXPECT_TRUE(tier_->Has(Record(0, i).facts.name));
    EXPECT_EQ(driver_->ReadBack(Record(0, i)), Read::kRight) << i;
  }
  EXPECT_FALSE(tier_->Has(Record(1, 0).facts.name));
  EXPECT_EQ(driver_->ReadBack(Record(1, 0)), Read::kNotThere);
}

TEST_P(TierConformance, RefusesARecordThatItHasAndOneWhoseParentItHasNot) {
  ASSERT_TRUE(driver_->Write(Record(0, 0)));
  EXPECT_EQ(driver_->Write(Record(0, 0)).error(), WriteRefusal::kKnown);
  EXPECT_EQ(driver_->Write(Record(0, 5)).error(), WriteRefusal::kOff);
  ASSERT_TRUE(driver_->Flush());
  EXPECT_EQ(driver_->Write(Record(0, 0)).error(), WriteRefusal::kKnown);
}

TEST_P(TierConformance, UnsealsARecordOnlyForItsFacts) {
  const TestRecord record = Record(0, 0);
  ASSERT_TRUE(driver_->Write(record));
  ASSERT_TRUE(driver_->Flush());
  ASSERT_TRUE(tier_->ReadyOwner(TestRecord::Owner(1)));
  const auto read = tier_->BeginRead(record.facts.name);
  ASSERT_TRUE(read);
  ASSERT_TRUE(driver_->WaitUntil([&] { return tier_->StateOf(*read) == ReadState::kArrived; }));
  std::vector<std::byte> payload(kTierPayload);
  RecordFacts facts = record.Facts();
  facts.parent[0] ^= 1;
  EXPECT_FALSE(tier_->Unseal(*read, facts, payload));
  facts = record.Facts();
  facts.owner = TestRecord::Owner(1);
  EXPECT_FALSE(tier_->Unseal(*read, facts, payload));
  facts = record.Facts();
  facts.name.part = 1;
  EXPECT_FALSE(tier_->Unseal(*read, facts, payload));
  std::vector<TokenId> tokens = record.tokens;
  tokens.back() ^= 1;
  facts = record.Facts();
  facts.tokens = tokens;
  EXPECT_FALSE(tier_->Unseal(*read, facts, payload));
  EXPECT_TRUE(tier_->Unseal(*read, record.Facts(), payload));
  EXPECT_EQ(payload, record.payload);
  tier_->EndRead(*read, ReadEnd::kUsed);
}

TEST_P(TierConformance, TwoReadersOfARecordShareItsRead) {
  const TestRecord record = Record(0, 0);
  ASSERT_TRUE(driver_->Write(record));
  ASSERT_TRUE(driver_->Flush());
  const auto one = tier_->BeginRead(record.facts.name);
  const auto other = tier_->BeginRead(record.facts.name);
  ASSERT_TRUE(one && other);
  EXPECT_EQ(*one, *other);
  ASSERT_TRUE(driver_->WaitUntil([&] { return tier_->StateOf(*one) == ReadState::kArrived; }));
  tier_->EndRead(*one, ReadEnd::kNotUsed);
  std::vector<std::byte> payload(kTierPayload);
  EXPECT_TRUE(tier_->Unseal(*other, record.Facts(), payload));
  tier_->EndRead(*other, ReadEnd::kUsed);
}

TEST_P(TierConformance, ADamagedRecordLeavesAndThoseAfterItStillServe) {
  for (uint32_t i = 0; i < 3; ++i) ASSERT_TRUE(driver_->Write(Record(0, i)));
  ASSERT_TRUE(driver_->Flush());
  const auto read = tier_->BeginRead(Record(0, 1).facts.name);
  ASSERT_TRUE(read);
  ASSERT_TRUE(driver_->WaitUntil([&] { return tier_->StateOf(*read) == ReadState::kArrived; }));
  tier_->EndRead(*read, ReadEnd::kDamaged);
  EXPECT_EQ(tier_->Has(Record(0, 1).facts.name), GetParam() == Kind::kPair) << "of the other one";
  const auto& stats = remote_ && GetParam() == Kind::kPair ? *disk_ : *tier_;
  EXPECT_EQ(stats.Stats().fault_damaged, 1u);
  EXPECT_EQ(driver_->ReadBack(Record(0, 2)), Read::kRight);
  ASSERT_TRUE(driver_->Write(Record(0, 1)));
  ASSERT_TRUE(driver_->Flush());
  EXPECT_EQ(driver_->ReadBack(Record(0, 1)), Read::kRight);
}

TEST_P(TierConformance, AReadMayEndBeforeItsBytesCome) {
  for (uint32_t i = 0; i < 10; ++i) ASSERT_TRUE(driver_->Write(Record(0, i)));
  ASSERT_TRUE(driver_->Flush());
  for (int round = 0; round < 50; ++round) {
    std::vector<ReadId> reads;
    for (uint32_t i = 0; i < 10; ++i) {
      if (const auto read = tier_->BeginRead(Record(0, i).facts.name)) reads.push_back(*read);
    }
    for (const ReadId read : reads) tier_->EndRead(read, ReadEnd::kNotUsed);
    ASSERT_TRUE(driver_->WaitUntil([&] { return tier_->HasReadRoom(); }));
  }
  for (uint32_t i = 0; i < 10; ++i) EXPECT_EQ(driver_->ReadBack(Record(0, i)), Read::kRight);
}

TEST_P(TierConformance, AnOwnersEraseLeavesTheOthers) {
  for (uint32_t i = 0; i < 8; ++i) {
    ASSERT_TRUE(driver_->Write(Record(0, i, 0)));
    ASSERT_TRUE(driver_->Write(Record(1, i, 1)));
  }
  ASSERT_TRUE(driver_->Flush());
  const auto read = tier_->BeginRead(Record(0, 3, 0).facts.name);
  ASSERT_TRUE(read);
  ASSERT_TRUE(driver_->Write(Record(0, 8, 0)));  // on its way when the erase comes
  const auto erased = driver_->Erase(TestRecord::Owner(0));
  for (uint32_t i = 0; i < 9; ++i) EXPECT_FALSE(tier_->Has(Record(0, i, 0).facts.name)) << i;
  ASSERT_TRUE(erased) << erased.error().message;
  EXPECT_GE(erased->blocks, 8u);
  EXPECT_LE(erased->blocks, 9u);
  EXPECT_EQ(tier_->StateOf(*read), ReadState::kErased) << "it was not damaged";
  std::vector<std::byte> payload(kTierPayload);
  EXPECT_FALSE(tier_->Unseal(*read, Record(0, 3, 0).Facts(), payload));
  tier_->EndRead(*read, ReadEnd::kNotUsed);
  for (uint32_t i = 0; i < 8; ++i) EXPECT_EQ(driver_->ReadBack(Record(1, i, 1)), Read::kRight);
  ASSERT_TRUE(driver_->Write(Record(0, 0, 0)));  // the owner may go on
  ASSERT_TRUE(driver_->Flush());
  EXPECT_EQ(driver_->ReadBack(Record(0, 0, 0)), Read::kRight);
}

// Makes a record that comes after `before` and has the first tokens of another one.
TestRecord Branch(uint32_t number, const TestRecord& before, const TestRecord& like,
                  size_t num_equal) {
  TestRecord branch(99, number, 0, kTierTokens, kTierPayload);
  branch.facts.parent = before.facts.name.key;
  branch.facts.after = before.facts.name;
  std::copy_n(like.tokens.begin(), num_equal, branch.tokens.begin());
  branch.tokens[num_equal] = like.tokens[num_equal] + 1;
  return branch;
}

TEST_P(TierConformance, AForgetTakesWhatBeginsWithTheTokensAndAllBelowIt) {
  for (uint32_t i = 0; i < 6; ++i) ASSERT_TRUE(driver_->Write(Record(0, i)));
  ASSERT_TRUE(driver_->Write(Record(1, 0)));  // another prompt of the owner
  ASSERT_TRUE(driver_->Write(Record(2, 0, 1)));
  const TestRecord near = Branch(1, Record(0, 1), Record(0, 2), 9);
  const TestRecord far = Branch(2, Record(0, 1), Record(0, 2), 8);
  const TestRecord below = Branch(3, Record(0, 4), Record(0, 5), 1);
  for (const TestRecord* record : {&near, &far, &below}) ASSERT_TRUE(driver_->Write(*record));
  ASSERT_TRUE(driver_->Flush());
  const auto read = tier_->BeginRead(Record(0, 3).facts.name);
  ASSERT_TRUE(read);
  ASSERT_TRUE(driver_->Write(Record(1, 1)));  // on its way when the forget comes
  const auto forgotten = driver_->Forget(TierDriver::ForgetOf(Record(0, 2), 9));
  ASSERT_TRUE(forgotten) << forgotten.error().message;
  EXPECT_EQ(forgotten->blocks, 6u);
  EXPECT_EQ(tier_->StateOf(*read), ReadState::kErased) << "it was not damaged";
  std::vector<std::byte> payload(kTierPayload);
  EXPECT_FALSE(tier_->Unseal(*read, Record(0, 3).Facts(), payload));
  tier_->EndRead(*read, ReadEnd::kNotUsed);
  for (uint32_t i = 0; i < 2; ++i) EXPECT_EQ(ReadBack(Record(0, i)), Read::kRight);
  for (uint32_t i = 2; i < 6; ++i) EXPECT_FALSE(Has(Record(0, i).facts.name)) << i;
  EXPECT_FALSE(Has(near.facts.name));
  EXPECT_FALSE(Has(below.facts.name));
  EXPECT_EQ(ReadBack(far), Read::kRight);
  ASSERT_TRUE(driver_->Flush());
  for (uint32_t i = 0; i < 2; ++i) EXPECT_EQ(ReadBack(Record(1, i)), Read::kRight) << i;
  EXPECT_EQ(ReadBack(Record(2, 0, 1)), Read::kRight);
  for (uint32_t i = 2; i < 6; ++i) ASSERT_TRUE(driver_->Write(Record(0, i)));  // it may come again
  ASSERT_TRUE(driver_->Flush());
  for (uint32_t i = 0; i < 6; ++i) EXPECT_EQ(ReadBack(Record(0, i)), Read::kRight);
}

// What waits to be written is forgotten by the same rule, and nothing else of the tenant is.
TEST_P(TierConformance, AForgetLeavesOtherWritesOnTheirWay) {
  for (const bool flushes : {false, true}) {
    const uint32_t chain = flushes ? 40 : 30;
    const TestRecord parts = Branch(chain + 1, Record(chain, 1), Record(chain, 2), 8);
    for (uint32_t i = 0; i < 2; ++i) ASSERT_TRUE(driver_->Write(Record(chain, i)));
    if (flushes) {
      ASSERT_TRUE(driver_->Flush());
    }
    for (uint32_t i = 2; i < 6; ++i) ASSERT_TRUE(driver_->Write(Record(chain, i)));
    ASSERT_TRUE(driver_->Write(parts));
    for (uint32_t i = 0; i < 3; ++i) {
      ASSERT_TRUE(driver_->Write(Record(chain + 2, i)));
      ASSERT_TRUE(driver_->Write(Record(chain + 3, i, 1)));
    }
    ForgetFacts facts = TierDriver::ForgetOf(Record(chain, 3), 5, 2);  // the text begins in 1
    ASSERT_TRUE(driver_->Forget(facts));
    ASSERT_TRUE(driver_->Flush());
    for (uint32_t i = 0; i < 6; ++i) {
      // Another prompt parts after 1; 2 is needed by nothing.
      EXPECT_EQ(ReadBack(Record(chain, i)), i < 2 ? Read::kRight : Read::kNotThere) << i;
    }
    EXPECT_EQ(ReadBack(parts), Read::kRight);
    for (uint32_t i = 0; i < 3; ++i) {
      EXPECT_EQ(ReadBack(Record(chain + 2, i)), Read::kRight) << i;
      EXPECT_EQ(ReadBack(Record(chain + 3, i, 1)), Read::kRight) << i;
    }
    for (uint32_t i = 2; i < 6; ++i) ASSERT_TRUE(driver_->Write(Record(chain, i)));
    ASSERT_TRUE(driver_->Flush());
    EXPECT_EQ(ReadBack(Record(chain, 5)), Read::kRight) << "it may come again";
  }
}

TEST_P(TierConformance, AForgetKeepsTheKeptBlocksAndTakesFirstBlocks) {
  for (uint32_t i = 0; i < 6; ++i) ASSERT_TRUE(driver_->Write(Record(0, i)));
  ASSERT_TRUE(driver_->Write(Record(1, 0)));
  ASSERT_TRUE(driver_->Flush());
  ForgetFacts facts = TierDriver::ForgetOf(Record(0, 0), 16);
  facts.kept = TierDriver::Keys(
      {Record(0, 2).facts.name.key, Record(0, 1).facts.name.key, Record(0, 0).facts.name.key});
  const auto forgotten = driver_->Forget(facts);
  ASSERT_TRUE(forgotten) << forgotten.error().message;
  EXPECT_EQ(forgotten->blocks, 3u);
  for (uint32_t i = 0; i < 6; ++i) EXPECT_EQ(Has(Record(0, i).facts.name), i < 3) << i;
  ASSERT_TRUE(driver_->Forget(TierDriver::ForgetOf(Record(0, 0), 1)));
  for (uint32_t i = 0; i < 3; ++i) EXPECT_FALSE(Has(Record(0, i).facts.name)) << i;
  EXPECT_EQ(ReadBack(Record(1, 0)), Read::kRight);
}

TEST_P(TierConformance, AForgetGoesBackToWhatOthersNeed) {
  for (uint32_t i = 0; i < 8; ++i) ASSERT_TRUE(driver_->Write(Record(0, i)));
  const TestRecord parts = Branch(1, Record(0, 3), Record(0, 4), 5);
  ASSERT_TRUE(driver_->Write(parts));
  ASSERT_TRUE(driver_->Flush());
  // The text begins in record 2 and ends in record 6.
  const auto forgotten = driver_->Forget(TierDriver::ForgetOf(Record(0, 6), 9, 4));
  ASSERT_TRUE(forgotten) << forgotten.error().message;
  EXPECT_EQ(forgotten->blocks, 4u);
  for (uint32_t i = 0; i < 8; ++i) EXPECT_EQ(Has(Record(0, i).facts.name), i < 4) << i;
  EXPECT_EQ(ReadBack(parts), Read::kRight);
  // Nothing but the text itself is left of it, and nothing of its end: record 3 is kept, 2 is not.
  ForgetFacts facts = TierDriver::ForgetOf(parts, 6);
  ASSERT_TRUE(driver_->Forget(facts));
  facts = TierDriver::ForgetOf(Record(0, 6), 9, 4);
  facts.kept = TierDriver::Keys({Record(0, 2).facts.name.key});
  ASSERT_TRUE(driver_->Forget(facts));
  for (uint32_t i = 0; i < 8; ++i) EXPECT_EQ(Has(Record(0, i).facts.name), i < 3) << i;
  ASSERT_TRUE(driver_->Forget(TierDriver::ForgetOf(Record(0, 6), 9, 6)));
  for (uint32_t i = 0; i < 8; ++i) EXPECT_FALSE(Has(Record(0, i).facts.name)) << i;
}

// Random trees of prompts against the rule, record by record.
TEST_P(TierConformance, AForgetLeavesWhatTheRuleLeaves) {
  Random random(7);
  for (int round = 0; round < 60; ++round) {
    struct Node {
      TestRecord record;
      std::optional<size_t> before;
      uint32_t depth;
      bool is_here = true;
    };
    std::vector<Node> nodes;
    const auto chain = static_cast<uint32_t>(1000 + round);
    for (uint32_t i = 0; i < 24; ++i) {
      Node node{TestRecord(chain, i, 0, kTierTokens, kTierPayload), std::nullopt, 0};
      if (i > 0 && random.Below(6) != 0) {
        node.before = random.Below(2) == 0 ? i - 1 : random.Below(i);
        const Node& before = nodes[*node.before];
        node.depth = before.depth + 1;
        node.record.facts.parent = before.record.facts.name.key;
        node.record.facts.after = before.record.facts.name;
      } else {
        node.record.facts.parent = TestRecord::Filled(chain);
        node.record.facts.after.reset();
      }
      // Siblings begin alike.
      for (const Node& other : nodes) {
        if (other.before != node.before) continue;
        const size_t equal = random.Below(kTierTokens);
        std::copy_n(other.record.tokens.begin(), equal, node.record.tokens.begin());
      }
      nodes.push_back(std::move(node));
      ASSERT_TRUE(driver_->Write(nodes.back().record));
      ASSERT_TRUE(driver_->Flush());
    }
    const Node& end = nodes[random.Below(nodes.size())];
    const size_t num_tokens = 1 + random.Below(kTierTokens);
    ForgetFacts facts = TierDriver::ForgetOf(end.record, num_tokens);
    std::vector<size_t> path;  // from the end on
    for (auto at = end.before; at && random.Below(5) != 0; at = nodes[*at].before) {
      path.push_back(*at);
      facts.path.insert(facts.path.begin(), nodes[*at].record.facts.name.key);
    }
    std::vector<bool> kept(nodes.size());
    std::vector<BlockKey> keys;
    if (random.Below(2) == 0) {
      for (std::optional<size_t> at = random.Below(nodes.size()); at; at = nodes[*at].before) {
        kept[*at] = true;
        keys.push_back(nodes[*at].record.facts.name.key);
      }
    }
    facts.kept = TierDriver::Keys(keys);
    std::vector<bool> begins(nodes.size());
    for (size_t i = 0; i < nodes.size(); ++i) {
      begins[i] =
          (nodes[i].before && begins[*nodes[i].before]) ||
          (nodes[i].before == end.before &&
           std::equal(facts.tokens.begin(), facts.tokens.end(), nodes[i].record.tokens.begin()));
      nodes[i].is_here = !begins[i] || kept[i];
    }
    for (const size_t at : path) {
      const bool is_needed = std::ranges::any_of(
          nodes, [&](const Node& other) { return other.is_here && other.before == at; });
      if (!is_needed && !kept[at]) nodes[at].is_here = false;
    }
    ASSERT_TRUE(driver_->Forget(facts));
    for (size_t i = 0; i < nodes.size(); ++i) {
      ASSERT_EQ(Has(nodes[i].record.facts.name), nodes[i].is_here) << round << " " << i;
    }
    ASSERT_TRUE(driver_->Erase(TestRecord::Owner(0)));
  }
}

TEST_P(TierConformance, AForgetTakesWhatHasLostItsWay) {
  for (uint32_t chain = 0; chain < 2; ++chain) {
    for (uint32_t i = 0; i < 4; ++i) ASSERT_TRUE(driver_->Write(Record(chain, i, chain)));
  }
  ASSERT_TRUE(driver_->Flush());
  for (uint32_t chain = 0; chain < 2; ++chain) {
    const auto read = tier_->BeginRead(Record(chain, 1, chain).facts.name);
    ASSERT_TRUE(read);
    ASSERT_TRUE(driver_->WaitUntil([&] { return tier_->StateOf(*read) == ReadState::kArrived; }));
    tier_->EndRead(*read, ReadEnd::kDamaged);
  }
  EXPECT_TRUE(Has(Record(0, 3).facts.name));
  ASSERT_TRUE(driver_->Forget(TierDriver::ForgetOf(Record(0, 1), 3)));
  for (uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(Has(Record(0, i, 0).facts.name), i == 0) << i;
    EXPECT_EQ(Has(Record(1, i, 1).facts.name), i != 1) << i;
  }
}

TEST_P(TierConformance, AForgetWithoutChainsTakesAllOfTheOwner) {
  for (uint32_t i = 0; i < 4; ++i) ASSERT_TRUE(driver_->Write(Record(0, i)));
  ASSERT_TRUE(driver_->Write(Record(1, 0, 1)));
  ASSERT_TRUE(driver_->Flush());
  ForgetFacts facts = TierDriver::ForgetOf(Record(0, 3), 1);
  facts.has_chains = false;
  facts.kept = TierDriver::Keys({Record(0, 0).facts.name.key});
  ASSERT_TRUE(driver_->Forget(facts));
  for (uint32_t i = 0; i < 4; ++i) EXPECT_EQ(Has(Record(0, i).facts.name), i == 0) << i;
  EXPECT_EQ(ReadBack(Record(1, 0, 1)), Read::kRight);
}

TEST_P(TierConformance, HalfOfTheBuffersAreLeftToReads) {
  uint32_t begun = 0;
  std::vector<WriteId> writes;
  for (;; ++begun) {
    const auto write = tier_->BeginWrite(Record(begun, 0).Facts());
    if (!write) {
      EXPECT_EQ(write.error(), WriteRefusal::kNoBuffer);
      break;
    }
    writes.push_back(*write);
    ASSERT_LT(begun, 100'000u);
  }
  EXPECT_TRUE(tier_->HasReadRoom());
  for (uint32_t i = 0; i < writes.size(); ++i) {
    tier_->Seal(writes[i], Record(i, 0).payload);
    tier_->EndWrite(writes[i]);
  }
  ASSERT_TRUE(driver_->WaitUntil([&] { return tier_->Stats().pending_blocks == 0; }));
  EXPECT_TRUE(tier_->BeginWrite(Record(begun, 0).Facts()));
}

}  // namespace
}  // namespace kvasir
