// What each sequence and owner may see and write: forks, full pools, rewinding, tenants, erasure,
// and the faults that must show.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "base/fault.h"
#include "cache/cache_driver_for_test.h"

namespace kvasir {
namespace {

using enum KvCache::CommitKind;

TEST_F(KvCacheTest, TenantsShareNothing) {
  const Tokens prompt = TokensFrom(1, 40);
  Run(prompt);
  const NamespaceId bob = cache().EnterNamespace("bob", IdentityNamed(1));
  driver_->Run(bob, 8, prompt, {}, &miss_);
  EXPECT_EQ(reused(), 0u);
  ExpectMiss(MissReason::kCold, 0);
  EXPECT_EQ(cache().EnterNamespace("bob", IdentityNamed(1)), bob);
  EXPECT_EQ(cache().counters().deduplicated_blocks, 0u);
}

TEST_F(KvCacheTest, PrefixesOfAnOwnerAreListedAsATree) {
  const NamespaceId bob = cache().EnterNamespace("bob", IdentityNamed(1));
  const Tokens shared = TokensFrom(1, 32);
  for (const TokenId last : {7, 8, 9}) {
    Tokens prompt = shared;
    const Tokens own = TokensFrom(100 * last, 32);
    prompt.insert(prompt.end(), own.begin(), own.end());
    driver_->Run(bob, 16, prompt, {}, &miss_);
  }
  EXPECT_TRUE(cache().ListPrefixes("stranger", 100, 1000).runs.empty());
  const PrefixList list = cache().ListPrefixes("bob", 100, 1000);
  EXPECT_FALSE(list.has_more);
  ASSERT_EQ(list.runs.size(), 4u);
  const PrefixRun& top = list.runs[0];
  EXPECT_EQ(top.tokens, shared);
  EXPECT_EQ(top.hits, 2u);
  EXPECT_FALSE(top.parent);
  uint32_t blocks = top.blocks;
  for (size_t i = 1; i < 4; ++i) {
    const PrefixRun& run = list.runs[i];
    EXPECT_EQ(run.parent, 0u);
    EXPECT_EQ(run.begin, 32u);
    EXPECT_EQ(run.hits, 0u);
    EXPECT_EQ(run.used_blocks, 0u);
    blocks += run.blocks;
  }
  EXPECT_EQ(blocks, cache().usage().idle_blocks);
  EXPECT_TRUE(cache().ListPrefixes("bob", 2, 1000).has_more);
  EXPECT_EQ(cache().ListPrefixes("bob", 2, 1000).runs.size(), 2u);
  EXPECT_TRUE(cache().ListPrefixes("bob", 100, 8).has_more);
  cache().Forget("bob");
  EXPECT_TRUE(cache().ListPrefixes("bob", 100, 1000).runs.empty());
}

TEST_F(KvCacheTest, TenantsBeyondTheLimitAreServedAndNotKept) {
  const uint32_t limit = OptionsFor(2).num_namespaces;
  Run(TokensFrom(1, 5));
  for (uint32_t i = 0; i + 1 < limit; ++i) {  // alice is one
    const std::string name = std::string(1000, 'x') + std::to_string(i);
    const NamespaceId ns = cache().EnterNamespace(name, IdentityNamed(1));
    ASSERT_NE(ns, kSharesNothing);
    driver_->Run(ns, 8, TokensFrom(10 + i, 5), {}, &miss_);
  }
  const Tokens prompt = TokensFrom(1, 40);
  const NamespaceId late = cache().EnterNamespace("late", IdentityNamed(1));
  EXPECT_EQ(late, kSharesNothing);
  for (int i = 0; i < 2; ++i) {
    driver_->Run(late, 8, prompt, {}, &miss_);
    EXPECT_EQ(reused(), 0u);
    ExpectMiss(MissReason::kDisabled, 0);
  }
  cache().Erase(late);
  cache().CheckInvariants();  // still allocates what was planned
}

TEST_F(KvCacheTest, ANamespaceWithoutBlocksAndUsersIsRecycled) {
  const uint32_t limit = OptionsFor(2).num_namespaces;
  const Tokens prompt = TokensFrom(1, 40);
  Run(prompt);
  for (uint32_t i = 0; i < 10 * limit; ++i) {  // none of them keeps anything
    const NamespaceId ns = cache().EnterNamespace("x" + std::to_string(i), IdentityNamed(1));
    ASSERT_NE(ns, kSharesNothing);
    driver_->Run(ns, 8, prompt, {}, &miss_);
    EXPECT_EQ(reused(), 0u);
    cache().Erase(ns);
    cache().CheckInvariants();
  }
  Run(prompt);
  EXPECT_EQ(reused(), 40u) << "alice has blocks";
  std::vector<KvSequence> users;
  for (uint32_t i = 0; i + 1 < limit; ++i) {
    const NamespaceId ns = cache().EnterNamespace("user" + std::to_string(i), IdentityNamed(1));
    users.push_back(driver_->Run(ns, 8, TokensFrom(3, 1), {.reuse = false}, &miss_));
  }
  EXPECT_EQ(cache().EnterNamespace("late", IdentityNamed(1)), kSharesNothing);
  users.pop_back();
  EXPECT_NE(cache().EnterNamespace("late", IdentityNamed(1)), kSharesNothing);
}

TEST_F(KvCacheTest, ASaltNarrowsANamespaceAndAnOwnerHasFewOfThem) {
  const Tokens prompt = TokensFrom(1, 40);
  const auto run = [&](std::string_view owner, std::optional<std::string_view> salt) {
    driver_->Run(cache().EnterNamespace(owner, IdentityNamed(1), salt), 8, prompt, {}, &miss_);
    return reused();
  };
  EXPECT_EQ(run("alice", {}), 0u);
  for (uint32_t i = 0; i < KvCache::kMaxSalts; ++i) {
    const std::string salt = "s" + std::to_string(i);
    EXPECT_EQ(run("alice", salt), 0u);
    ExpectMiss(MissReason::kCold, 0);
    EXPECT_EQ(run("alice", salt), 40u);
  }
  EXPECT_EQ(cache().EnterNamespace("alice", IdentityNamed(1), "more"), kSharesNothing);
  EXPECT_EQ(run("bob", "s0"), 0u);
  EXPECT_EQ(run("bob", "s0"), 40u);
  EXPECT_EQ(run("alice", {}), 40u);
  cache().Forget("alice");
  cache().CheckInvariants();
  EXPECT_EQ(run("alice", "s3"), 0u);
  EXPECT_EQ(run("alice", {}), 0u);
  EXPECT_EQ(run("alice", "more"), 0u);
  EXPECT_EQ(run("alice", "more"), 40u) << "an erased one is recycled";
  EXPECT_EQ(run("bob", "s0"), 40u);
}

TEST_F(KvCacheTest, SaltsLeaveNamespacesForOthers) {
  const uint32_t limit = OptionsFor(2).num_namespaces;
  const Tokens prompt = TokensFrom(1, 5);
  for (uint32_t i = 0; i < limit; ++i) {
    const std::string owner = i < KvCache::kMaxSalts ? "flood" : "other";
    const std::string salt = "s" + std::to_string(i);
    driver_->Run(cache().EnterNamespace(owner, IdentityNamed(1), salt), 8, prompt, {}, &miss_);
  }
  EXPECT_EQ(cache().EnterNamespace("late", IdentityNamed(1), "salted"), kSharesNothing);
  const NamespaceId late = cache().EnterNamespace("late", IdentityNamed(1));
  ASSERT_NE(late, kSharesNothing);
  cache().CheckInvariants();
  driver_->Run(late, 8, prompt, {}, &miss_);
  EXPECT_EQ(reused(), 0u);
  driver_->Run(late, 8, prompt, {}, &miss_);
  EXPECT_EQ(reused(), 5u);
  driver_->Run(cache().EnterNamespace("flood", IdentityNamed(1), "s1"), 8, prompt, {}, &miss_);
  EXPECT_EQ(reused(), 5u) << "it took the place of the oldest one only";
}

TEST_F(KvCacheTest, ForksShareUntilTheyWrite) {
  KvSequence parent = Run(TokensFrom(1, 40), {.reuse = false});
  KvSequence left = cache().Fork(parent, 80);
  KvSequence right = cache().Fork(parent, 80);
  EXPECT_EQ(cache().usage().pinned_blocks, 3u);
  EXPECT_EQ(cache().usage().live_tokens, 40u);
  ASSERT_TRUE(driver_->Append(left, 7, TokensFrom(2, 5)));
  ASSERT_TRUE(driver_->Append(right, 7, TokensFrom(3, 6)));
  EXPECT_EQ(cache().counters().copied_blocks, 2u);
  EXPECT_EQ(cache().usage().pinned_blocks, 5u);
  ASSERT_TRUE(driver_->Append(parent, 7, TokensFrom(4, 7)));
  EXPECT_EQ(cache().counters().copied_blocks, 2u) << "the last one owns the tail";
  for (const KvSequence* sequence : {&parent, &left, &right}) driver_->Verify(*sequence, 7);
  cache().CheckInvariants();
}

TEST_F(KvCacheTest, AFullPoolIsAnAnswerAndChangesNothing) {
  Make(3);
  ns_ = cache().EnterNamespace("alice", IdentityNamed(1));
  KvSequence sequence = Run(TokensFrom(1, 40));
  const Status status = cache().Extend(sequence, TokensFrom(2, 9));
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::kExhausted);
  EXPECT_EQ(sequence.num_tokens(), 40u);
  EXPECT_EQ(sequence.table().size(), 3u);
  EXPECT_EQ(cache().counters().copied_blocks, 0u);
  driver_->Verify(sequence, 7);
  cache().CheckInvariants();
}

TEST_F(KvCacheTest, ASequenceNeedsNoBlockBeyondItsOwn) {
  Make(3);
  ns_ = cache().EnterNamespace("alice", IdentityNamed(1));
  KvSequence sequence = Run(TokensFrom(1, 40));  // its tail is published, and no block is left
  ASSERT_TRUE(driver_->Append(sequence, 7, TokensFrom(2, 8)));
  driver_->Verify(sequence, 7);
  EXPECT_EQ(cache().usage().cached_tokens, 48u);
}

TEST_F(KvCacheTest, ForksOfAPublishedTailNeedOneBlockEach) {
  Make(4);
  ns_ = cache().EnterNamespace("alice", IdentityNamed(1));
  KvSequence left = Run(TokensFrom(1, 40));  // two whole blocks and a tail
  KvSequence right = cache().Fork(left, 48);
  ASSERT_TRUE(driver_->Append(left, 7, TokensFrom(2, 8)));   // takes the last block
  ASSERT_TRUE(driver_->Append(right, 7, TokensFrom(3, 8)));  // takes over the tail
  EXPECT_EQ(cache().available_blocks(), 0u);
  driver_->Verify(left, 7);
  driver_->Verify(right, 7);
  cache().CheckInvariants();
}

TEST_F(KvCacheTest, AMatchThatIsHeldOverAnEraseKeepsItsBytesAndPublishesNothing) {
  const Tokens prompt = TokensFrom(1, 40);
  Run(prompt);
  MatchResult match = cache().Match(ns_, prompt, {});
  cache().Erase(ns_);
  EXPECT_EQ(cache().usage().cached_tokens, 0u);
  KvSequence sequence = cache().Fetch(std::move(match), 64);
  driver_->Verify(sequence, 7);
  ASSERT_TRUE(driver_->Append(sequence, 7, TokensFrom(2, 20), kEnd));
  EXPECT_EQ(cache().usage().cached_tokens, 0u);
  cache().CheckInvariants();
}

TEST_F(KvCacheTest, EraseForgetsAndZeroesAndLeavesOthersAlone) {
  const NamespaceId bob = cache().EnterNamespace("bob", IdentityNamed(1));
  const Tokens prompt = TokensFrom(1, 40);
  driver_->Run(bob, 8, prompt);
  Run(TokensFrom(2, 40));
  KvSequence running = Run(prompt);
  KvSequence rewound = cache().Fork(running, 64);
  const std::byte* held = running.table().bases()[0];
  cache().Erase(ns_);
  cache().CheckInvariants();
  driver_->Verify(running, 7);
  // A running sequence can go on; it publishes nothing and leaves nothing in memory.
  ASSERT_TRUE(driver_->Append(running, 7, TokensFrom(3, 30), kEnd));
  driver_->Verify(running, 7);
  cache().KeepCursor(running, HiddenOf(7, running.tokens()));
  cache().Truncate(rewound, 17);
  EXPECT_EQ(cache().usage().cached_tokens, 40u);
  EXPECT_EQ(cache().usage().num_cursors, 1u);
  const std::vector<std::byte*> bases(running.table().bases().begin(),
                                      running.table().bases().end());
  running = KvSequence();
  rewound = KvSequence();
  EXPECT_EQ(bases[0], held);
#if !defined(__SANITIZE_ADDRESS__)  // free blocks are poisoned there
  for (const std::byte* base : bases) {
    for (size_t i = 0; i < cache().layout().block_bytes(); ++i) ASSERT_EQ(base[i], std::byte{0});
  }
#endif
  Run(prompt);
  EXPECT_EQ(reused(), 0u);
  ExpectMiss(MissReason::kCold, 0);
  driver_->Run(bob, 8, prompt);
  EXPECT_EQ(reused(), 40u);
}

TEST_F(KvCacheTest, WhatIsForgottenIsZeroedInPiecesOrBeforeItIsUsed) {
  std::vector<const std::byte*> bases;
  for (TokenId seed = 1; seed <= 3; ++seed) {
    const KvSequence sequence = Run(TokensFrom(seed, 32));
    bases.insert(bases.end(), sequence.table().bases().begin(), sequence.table().bases().end());
  }
  const auto num_zero = [&] {
    size_t count = 0;
#if !defined(__SANITIZE_ADDRESS__)  // free blocks are poisoned there
    for (const std::byte* base : bases) {
      count += std::count(base, base + cache().layout().block_bytes(), std::byte{0}) ==
               static_cast<ptrdiff_t>(cache().layout().block_bytes());
    }
#endif
    return count;
  };
  const uint64_t first = cache().Forget(ns_);
  EXPECT_EQ(cache().usage().cached_tokens, 0u);
  EXPECT_EQ(cache().usage().idle_blocks, 0u);
  EXPECT_FALSE(cache().IsZeroed(first));
  cache().ZeroForgotten(1);
  cache().CheckInvariants();
#if !defined(__SANITIZE_ADDRESS__)
  EXPECT_EQ(num_zero(), 1u);
#endif
  // A forgotten block is zeroed when it is taken, and ZeroForgotten does not touch it afterwards.
  const NamespaceId bob = cache().EnterNamespace("bob", IdentityNamed(1));
  {
    KvSequence taken = cache().Fetch(cache().Match(bob, TokensFrom(9, 5), {}), 16);
    ASSERT_TRUE(cache().Extend(taken, TokensFrom(9, 5)));
    const std::byte* base = taken.table().bases()[0];
    EXPECT_NE(std::find(bases.begin(), bases.end(), base), bases.end());
    EXPECT_EQ(std::count(base, base + cache().layout().block_bytes(), std::byte{0}),
              static_cast<ptrdiff_t>(cache().layout().block_bytes()));
  }
  driver_->Run(bob, 8, TokensFrom(9, 40));
  // A later Forget does not delay the end of an earlier one.
  const uint64_t second = cache().Forget(bob);
  for (int i = 0; i < 100 && !cache().IsZeroed(first); ++i) cache().ZeroForgotten(1);
  for (int i = 0; i < 100 && !cache().IsZeroed(second); ++i) cache().ZeroForgotten(1);
  EXPECT_TRUE(cache().IsZeroed(first) && cache().IsZeroed(second));
#if !defined(__SANITIZE_ADDRESS__)
  EXPECT_EQ(num_zero(), bases.size());
#endif
  cache().CheckInvariants();
}

class KvCacheFaults : public KvCacheTest {
 protected:
  void TearDown() override { InjectFault(Fault::kNone); }
};

TEST_F(KvCacheFaults, AStaleBlockServesOtherBytes) {
  const Tokens prompt = TokensFrom(1, 40);
  InjectFault(Fault::kStaleBlock);
  KvSequence sequence = Run(prompt);
  EXPECT_EQ(std::memcmp(sequence.table().bases()[0], sequence.table().bases()[1],
                        cache().layout().block_bytes()),
            0);
}

TEST_F(KvCacheFaults, ASkippedCompareServesAnotherPrompt) {
  Run(TokensFrom(1, 40));
  InjectFault(Fault::kSkippedCompare);
  EXPECT_GE(cache().Match(ns_, TokensFrom(2, 40), {}).num_reused(), 32u);
}

TEST_F(KvCacheFaults, AForeignNamespaceServesAnotherTenant) {
  InjectFault(Fault::kForeignNamespace);
  EXPECT_EQ(cache().EnterNamespace("alice", IdentityNamed(1)),
            cache().EnterNamespace("bob", IdentityNamed(2)));
}

}  // namespace
}  // namespace kvasir
