#include "events/event_stream.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>

#include "base/fault.h"
#include "base/random.h"
#include "cache/cache_driver_for_test.h"
#include "events/event_follower_for_test.h"

namespace kvasir {
namespace {

constexpr uint64_t kFirst = 7, kSecond = EventStream::kSnapshotPauseNs;

// A cache whose blocks of alice are published.
class EventStreamTest : public testing::Test {
 protected:
  void Make(uint32_t num_blocks, const KvLayout& layout = TinyLayout()) {
    KvCacheOptions options = OptionsFor(num_blocks, 4, &DefaultEvictionChoice(), layout);
    about_ = KvCache::EventOptions(options, KvCache::Plan(options), "alice");
    log_ = std::make_unique<KvEventLog>(about_);
    EXPECT_EQ(log_->allocated_bytes(), KvEventLog::BytesFor(about_));
    options.events = log_.get();
    driver_ = std::make_unique<CacheDriver>(options);
    stream_ = std::make_unique<EventStream>(
        EventStream::Options{.num_nodes = about_.num_nodes,
                             .block_tokens = about_.block_tokens,
                             .hash_key = {1, 2},
                             .first_sequence = kFirst,
                             .ask_fill = [this] { asks_fill_ = true; },
                             .drop_queues =
                                 [this] {
                                   ++num_dropped_;
                                   held_.clear();
                                 }},
        *log_);
    EXPECT_EQ(stream_->allocated_bytes(),
              EventStream::TableBytes(about_.num_nodes, about_.block_tokens));
    alice_ = Open("alice");
  }
  KvCache& cache() { return *driver_->cache; }
  NamespaceId Open(const char* owner, std::optional<std::string_view> salt = std::nullopt,
                   uint8_t identity = 1, uint8_t plain = 1) {
    return cache().EnterNamespace(owner, IdentityNamed(identity), salt, IdentityNamed(plain));
  }
  void Run(const Tokens& prompt) { driver_->Run(alice_, 7, prompt); }
  // Advances the stream, and fills the mirror as the engine's thread does where the publisher asks.
  std::optional<EventBatch> Advance() {
    auto batch = stream_->Advance(now_ns_, 1.5);
    if (asks_fill_.exchange(false)) {
      cache().FillEvents(&stream_->mirror());
      batch = stream_->Advance(now_ns_, 1.5);
    }
    return batch;
  }
  std::set<EventPath> Published() { return PublishedPaths(cache(), about_); }

  KvEventLog::Options about_{};
  std::unique_ptr<KvEventLog> log_;
  std::unique_ptr<CacheDriver> driver_;
  std::vector<EventBatch> held_;  // of a slow subscriber's queue
  std::unique_ptr<EventStream> stream_;
  NamespaceId alice_{};
  std::atomic<bool> asks_fill_ = false;
  uint32_t num_dropped_ = 0;
  uint64_t now_ns_ = 10 * kSecond;
};

TEST_F(EventStreamTest, TellsOfWholeBlocksInTheOrderOfTheirPrompt) {
  Make(32);
  const Tokens prompt = TokensFrom(1, 40);
  Run(prompt);
  const auto batch = Advance();
  ASSERT_TRUE(batch);
  EXPECT_EQ(batch->sequence, kFirst);
  EXPECT_EQ(batch->num_blocks, 2u);
  EventFollower follower;
  follower.Take(*batch);
  EXPECT_EQ(follower.fault(), "");
  EXPECT_EQ(follower.paths(), (std::set<EventPath>{First(prompt, 16), First(prompt, 32)}));
  EXPECT_FALSE(Advance());
}

TEST_F(EventStreamTest, SaltsAdaptersAndOthersAreNotTold) {
  Make(64);
  uint64_t seed = 20;
  for (const NamespaceId ns :
       {Open("bob"), Open("alice", "salt"), Open("alice", std::nullopt, 2)}) {
    ++seed;
    driver_->Run(ns, seed, TokensFrom(seed, 40));
  }
  EXPECT_FALSE(Advance());
  driver_->Run(Open("alice", std::nullopt, 3, 3), 30, TokensFrom(30, 40));  // another model
  EXPECT_TRUE(Advance());
}

TEST_F(EventStreamTest, ASnapshotHasEverythingAndComesOnceASecond) {
  Make(64);
  const Tokens prompt = TokensFrom(1, 64);
  Run(prompt);
  Run(Join(First(prompt, 32), TokensFrom(2, 48)));
  (void)Advance();
  EventFollower late;
  for (int i = 0; i < 2; ++i) {
    stream_->AskSnapshot();
    const auto batch = Advance();
    ASSERT_TRUE(batch);
    EXPECT_TRUE(batch->is_snapshot);
    late.Take(*batch);
    EXPECT_EQ(late.paths(), Published());
    stream_->AskSnapshot();
    EXPECT_EQ(stream_->due_ns(), now_ns_ + kSecond);
    EXPECT_FALSE(Advance());
    now_ns_ += kSecond;
    ASSERT_TRUE(Advance());
    EXPECT_FALSE(stream_->due_ns());
    now_ns_ += kSecond;
  }
}

TEST_F(EventStreamTest, ReplaysGiveWhatIsKept) {
  Make(64);
  EXPECT_EQ(stream_->From(0)->size(), 0u);
  for (uint64_t i = 0; i < 4; ++i) {
    Run(TokensFrom(i, 32));
    (void)Advance();
  }
  EXPECT_EQ(stream_->From(0)->size(), 4u);
  EXPECT_EQ(stream_->From(kFirst + 1)->front().sequence, kFirst + 1);
  EXPECT_EQ(stream_->From(kFirst + 1)->size(), 3u);
  EXPECT_EQ(stream_->From(kFirst + 9)->size(), 0u);
  EXPECT_EQ(stream_->From(~uint64_t{0})->size(), 0u);
}

TEST_F(EventStreamTest, AnErasedTextIsInNoReplay) {
  Make(64);
  const Tokens secret = TokensFrom(1, 48), other = TokensFrom(2, 48);
  Run(secret);
  Run(other);
  EventFollower follower;
  follower.Take(*Advance());
  cache().Forget(alice_, secret, 20, 30);
  const auto batch = Advance();
  ASSERT_TRUE(batch && batch->is_snapshot);
  follower.Take(*batch);
  EXPECT_EQ(follower.paths(), Published());
  EXPECT_FALSE(stream_->From(0));
  EXPECT_EQ(stream_->From(batch->sequence)->size(), 1u);
  // Within a second of that snapshot nothing comes until the next one.
  cache().Erase(alice_);
  EXPECT_FALSE(Advance());
  EXPECT_FALSE(stream_->From(0));
  EXPECT_FALSE(stream_->From(batch->sequence + 1));  // the next snapshot says it
  Run(other);
  EXPECT_FALSE(Advance());
  now_ns_ += kSecond;
  follower.Take(*Advance());
  EXPECT_EQ(follower.paths(), Published());
  EXPECT_EQ(follower.size(), 3u);
}

TEST_F(EventStreamTest, AnEraseEndsTheQueuesThatStillHoldTheText) {
  Make(64);
  Run(TokensFrom(1, 48));
  held_.push_back(*Advance());
  cache().Erase(alice_);
  ASSERT_TRUE(Advance());
  EXPECT_EQ(num_dropped_, 0u);
  EXPECT_EQ(stream_->due_ns(), now_ns_ + EventStream::kErasePauseNs);
  now_ns_ += EventStream::kErasePauseNs;
  EXPECT_FALSE(Advance());
  EXPECT_EQ(num_dropped_, 1u);
  EXPECT_FALSE(stream_->due_ns());
}

TEST_F(EventStreamTest, AnotherOwnersBlocksReplaceThoseOfBefore) {
  Make(64);
  const NamespaceId bob = Open("bob"), salted = Open("bob", "salt");
  const Tokens hers = TokensFrom(1, 48), his = TokensFrom(2, 32), later = TokensFrom(4, 32);
  Run(hers);
  driver_->Run(bob, 2, his);
  driver_->Run(salted, 3, TokensFrom(3, 32));
  EventFollower follower;
  follower.Take(*Advance());
  Run(TokensFrom(5, 48));  // is in the ring when the owner changes
  cache().SetEventOwner(KvCache::OwnerOf("bob"));
  const auto batch = Advance();
  ASSERT_TRUE(batch && batch->is_snapshot);
  follower.Take(*batch);
  EXPECT_EQ(follower.paths(), (std::set<EventPath>{First(his, 16), his}));
  EXPECT_FALSE(stream_->From(0));  // not kept any more
  Run(later);
  EXPECT_FALSE(Advance());
  driver_->Run(bob, 2, later);
  follower.Take(*Advance());
  EXPECT_EQ(follower.size(), 4u);
  cache().SetEventOwner(std::nullopt);
  EXPECT_FALSE(Advance());  // until the next snapshot
  EXPECT_FALSE(stream_->From(*follower.last()));
  now_ns_ += kSecond;
  follower.Take(*Advance());
  EXPECT_EQ(follower.size(), 0u);
  EXPECT_EQ(stream_->mirror().num_here(), 0u);
  driver_->Run(bob, 2, TokensFrom(6, 32));
  driver_->Run(Open("carol"), 2, TokensFrom(7, 32));
  EXPECT_FALSE(Advance());
}

TEST_F(EventStreamTest, PayloadsStayWithinTheirBudget) {
  Make(64);
  const uint64_t most = EventStream::MostPayloadBytes(about_.num_nodes, about_.block_tokens);
  uint64_t held_bytes = 0, most_held = 0;
  for (int i = 0; num_dropped_ < 2 && i < 100'000; ++i) {
    stream_->AskSnapshot();
    Run(TokensFrom(static_cast<uint64_t>(i), 600));
    held_.push_back(*Advance());
    if (held_.size() == 1) held_bytes = 0;
    held_bytes += held_.back().payload->bytes().size();
    most_held = std::max(most_held, held_bytes);
    now_ns_ += kSecond;
  }
  EXPECT_EQ(num_dropped_, 2u);
  EXPECT_LE(most_held, most);
  EXPECT_GT(most_held, most / 2);
}

TEST_F(EventStreamTest, WhatIsLostComesWithTheNextSnapshot) {
  Make(32);
  for (uint64_t i = 0; i < 64; ++i) Run(TokensFrom(i, 48));  // the log has room for 64 events
  EXPECT_TRUE(log_->is_lost());
  EXPECT_GT(log_->num_lost(), 0u);
  const auto batch = Advance();
  EXPECT_FALSE(log_->is_lost());
  ASSERT_TRUE(batch && batch->is_snapshot);
  EventFollower follower;
  follower.Take(*batch);
  EXPECT_EQ(follower.paths(), Published());
  for (uint64_t i = 0; i < 64; ++i) Run(TokensFrom(100 + i, 48));
  EXPECT_FALSE(Advance());  // at most once a second
  EXPECT_EQ(stream_->due_ns(), now_ns_ + kSecond);
  now_ns_ += kSecond;
  follower.Take(*Advance());
  EXPECT_EQ(follower.paths(), Published());
}

struct ModelCase {
  const char* name;
  uint32_t num_blocks;
  std::vector<uint32_t> windows;  // [layer], 0: full
};

class EventModelTest : public EventStreamTest, public testing::WithParamInterface<ModelCase> {
 protected:
  // Draws a prompt that shares its beginning with others.
  Tokens Prompt() {
    Tokens prompt = TokensFrom(random_.Below(4), 16 * (1 + random_.Below(4)));
    const size_t cut = 1 + random_.Below(prompt.size());
    prompt.resize(cut);
    return Join(prompt, TokensFrom(100 + random_.Below(6), random_.Below(60)));
  }
  void Step() {
    switch (random_.Below(40)) {
      case 0:
        cache().Erase(alice_);
        break;
      case 1: {
        const Tokens text = Prompt();
        const auto first = static_cast<uint32_t>(random_.Below(text.size()));
        cache().Forget(alice_, text, first,
                       first + static_cast<uint32_t>(random_.Below(text.size() - first)));
        break;
      }
      case 2:
        cache().Erase(bob_);
        break;
      case 3:
      case 4:
        driver_->Run(bob_, 8, Prompt());
        break;
      default:
        Run(Prompt());
    }
  }
  // Brings the follower a batch, or loses it. What is lost it sees by the next number, and asks.
  void Deliver(const EventBatch& batch) {
    if (random_.Below(20) == 0) return;
    const bool follows = !follower_.last() || batch.sequence == *follower_.last() + 1;
    if (follows || batch.is_snapshot) return follower_.Take(batch);
    const auto missing = stream_->From(*follower_.last() + 1);
    if (!missing) return stream_->AskSnapshot();
    ASSERT_EQ(missing->back().sequence, batch.sequence);
    for (const EventBatch& one : *missing) follower_.Take(one);
  }
  // Steps until the follower knows the last batch.
  void CatchUp() {
    now_ns_ += kSecond;
    stream_->AskSnapshot();
    const auto batch = Advance();
    ASSERT_TRUE(batch && batch->is_snapshot);
    follower_.Take(*batch);
  }

  Random random_{20261128};
  EventFollower follower_;
  NamespaceId bob_{};
};

TEST_P(EventModelTest, AFollowerKnowsWhatTheIndexHas) {
  Make(GetParam().num_blocks, LayoutOf(GetParam().windows));
  bob_ = Open("bob");
  uint64_t num_equal = 0;
  for (int i = 0; i < 10'000; ++i) {
    Step();
    now_ns_ += random_.Below(kSecond / 8);
    if (random_.Below(50) == 0) continue;  // the publisher is late
    while (const auto batch = Advance()) Deliver(*batch);
    ASSERT_EQ(follower_.fault(), "") << "step " << i;
    if (i % 500 == 0) {
      CatchUp();
      ASSERT_EQ(follower_.paths(), Published());
    }
    const bool knows_all = !stream_->due_ns() && stream_->From(*follower_.last() + 1)->empty();
    if (!knows_all) continue;
    ++num_equal;
    if (i % 10 != 0) continue;
    ASSERT_EQ(follower_.paths(), Published()) << "step " << i;
  }
  EXPECT_GT(num_equal, 1'000u);
}

INSTANTIATE_TEST_SUITE_P(Pools, EventModelTest,
                         testing::Values(ModelCase{"Small", 24, {0}}, ModelCase{"Roomy", 400, {0}},
                                         ModelCase{"TwoGroups", 40, {0, 0}},
                                         ModelCase{"Windows", 96, {0, 24}}),
                         [](const auto& info) { return info.param.name; });

// The cache's thread never waits, and the reader's goes on as it likes.
TEST_F(EventStreamTest, TwoThreadsAgree) {
  Make(48);
  EventFollower follower;
  std::atomic<bool> ends = false;
  std::thread reader([&] {
    Random random(3);
    const auto take = [&] {
      now_ns_ += random.Below(kSecond);
      while (const auto batch = stream_->Advance(now_ns_, 1.5)) follower.Take(*batch);
    };
    while (!ends) {
      if (random.Below(64) == 0) stream_->AskSnapshot();
      take();
    }
    do {  // what is asked for is brought by the other thread, which goes on until nothing is lost
      now_ns_ += kSecond;
      stream_->AskSnapshot();
      take();
    } while (log_->is_lost() || asks_fill_);
    now_ns_ += kSecond;
    take();
  });
  const auto fill = [&] {
    if (!asks_fill_) return;
    asks_fill_ = false;
    cache().FillEvents(&stream_->mirror());
  };
  Random random(4);
  for (uint64_t i = 0; i < 20'000; ++i) {
    Run(Join(TokensFrom(random.Below(8), 32), TokensFrom(i % 50, random.Below(60))));
    if (random.Below(500) == 0) cache().Erase(alice_);
    fill();
  }
  ends = true;
  while (log_->is_lost()) fill();
  reader.join();
  EXPECT_EQ(follower.fault(), "");
  EXPECT_EQ(follower.paths(), Published());
}

// The place of a block that was removed is taken by the next one, so an event that comes late
// removes that one.
TEST_F(EventStreamTest, AnEventAfterReuseIsFound) {
  InjectFault(Fault::kLateRemoval);
  Make(8);
  EventFollower follower;
  for (uint64_t i = 0; i < 8; ++i) {
    Run(TokensFrom(i, 64));
    if (const auto batch = Advance()) follower.Take(*batch);
  }
  InjectFault(Fault::kNone);
  EXPECT_NE(follower.fault(), "");
}

}  // namespace
}  // namespace kvasir
