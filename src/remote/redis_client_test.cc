// RedisClient: what it asks of one server and of a cluster, real or not.
#include "remote/redis_client.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "remote/redis_cluster_for_test.h"
#include "remote/redis_fake_for_test.h"

namespace kvasir {
namespace {

using Outcome = StoreReply::Outcome;
using What = StoreRequest::What;

bool AlwaysWaits() { return true; }

std::span<const std::byte> BytesOf(std::string_view text) { return std::as_bytes(std::span(text)); }

// A client that is connected.
struct Asking {
  explicit Asking(const RemoteAddress& address) : client(address, "", nullptr) {
    const Status opened = client.Open(*Resolve(address), AlwaysWaits);
    EXPECT_TRUE(opened) << opened.error().message;
  }
  StoreReply Ask(StoreRequest request) {
    auto reply = client.Ask(std::move(request), AlwaysWaits);
    EXPECT_TRUE(reply) << reply.error().message;
    return reply.value_or(StoreReply{.outcome = Outcome::kRefused});
  }
  Outcome Put(const std::string& name, std::string_view value) {
    return Ask({.what = What::kPut, .name = name, .value = BytesOf(value)}).outcome;
  }
  // Returns the value; "": there is not one.
  std::string Get(const std::string& name) {
    std::array<std::byte, 64> into;
    const StoreReply reply = Ask({.what = What::kGet, .name = name, .into = into, .ttl_s = 100});
    return {reinterpret_cast<const char*>(into.data()), reply.bytes};
  }
  RedisClient client;
};

std::string NameOf(int i) { return "name/" + std::to_string(i); }

TEST_F(OnCluster, EachNameIsAtItsNode) {
  Asking one(cluster_->address());
  EXPECT_EQ(one.client.num_connections(), RedisCluster::kNodes);
  constexpr int kNames = 300;
  for (int i = 0; i < kNames; ++i) {
    ASSERT_TRUE(one.client.Start(
        {.what = What::kPut, .id = 7, .name = NameOf(i), .value = BytesOf(NameOf(i))},
        AlwaysWaits));
    const auto reply = one.client.Next(AlwaysWaits);
    ASSERT_TRUE(reply && reply->is_done() && reply->id == 7) << i;
  }
  EXPECT_EQ(one.client.num_connections(), RedisCluster::kNodes);
  EXPECT_EQ(cluster_->NumKeys(), uint64_t{kNames});
  for (size_t i = 0; i < RedisCluster::kNodes; ++i) EXPECT_GT(cluster_->NumKeys(i), 50u) << i;
  for (int i = 0; i < kNames; ++i) EXPECT_EQ(one.Get(NameOf(i)), NameOf(i));
  EXPECT_EQ(one.Get("other"), "");
  EXPECT_EQ(one.client.num_connections(), RedisCluster::kNodes);
}

// One of them does not say that it is a cluster, and has all sent elsewhere.
TEST_F(OnCluster, ManyAtOnceAreSentOn) {
  std::map<uint64_t, std::string> values;
  for (uint64_t i = 0; i < 500; ++i) values[i] = NameOf(static_cast<int>(i));
  for (const What what : {What::kPut, What::kFind, What::kGet, What::kRemove}) {
    RedisFake seed;
    seed.Answer([&](const RedisFake::Words& words) -> std::optional<std::string> {
      if (words.size() < 2 || words[0] == "CLUSTER") return std::nullopt;
      const uint16_t slot = SlotOf(words[1]);
      const RemoteAddress to = cluster_->node(cluster_->OwnerOf(slot)).address();
      return "-MOVED " + std::to_string(slot) + " " + to.text() + "\r\n";
    });
    Asking many(seed.address());
    EXPECT_EQ(many.client.num_connections(), 1u);
    std::map<uint64_t, std::array<std::byte, 32>> into;
    for (const auto& [id, value] : values) {
      ASSERT_TRUE(many.client.Start(
          {.what = what,
           .id = id,
           .name = value,
           .into = what == What::kGet ? std::span<std::byte>(into[id]) : std::span<std::byte>(),
           .value = BytesOf(value),
           .ttl_s = 60},
          AlwaysWaits));
    }
    std::set<uint64_t> ended;
    for (size_t i = 0; i < values.size(); ++i) {
      const auto reply = many.client.Next(AlwaysWaits);
      ASSERT_TRUE(reply && reply->is_done()) << static_cast<int>(what);
      ended.insert(reply->id);
      if (what != What::kGet) continue;
      EXPECT_EQ(
          std::string_view(reinterpret_cast<const char*>(into[reply->id].data()), reply->bytes),
          values[reply->id]);
    }
    EXPECT_EQ(ended.size(), values.size());
  }
  EXPECT_EQ(cluster_->NumKeys(), 0u);
}

TEST_F(OnCluster, AListHasTheNamesOfAllMasters) {
  Asking one(cluster_->address());
  for (int i = 0; i < 6000; ++i) ASSERT_EQ(one.Put(NameOf(i), "v"), Outcome::kDone);
  ASSERT_EQ(one.Put("other/1", "v"), Outcome::kDone);
  Asking fresh(cluster_->address());  // which has not been sent elsewhere yet
  std::set<std::string> listed;
  std::string page;
  do {
    auto found = fresh.client.List("name/", page, AlwaysWaits);
    ASSERT_TRUE(found) << found.error().message;
    EXPECT_LE(found->names.size(), StoreClient::kPageNames);
    listed.insert(found->names.begin(), found->names.end());
    page = found->next;
  } while (!page.empty());
  EXPECT_EQ(listed.size(), 6000u);
}

// The three steps of a slot's way, with a value that has gone ahead, one that has not, and a new
// one.
TEST_F(OnCluster, ASlotOnItsWayIsFollowed) {
  Asking one(cluster_->address());
  const std::string tag = "{way}";
  const uint16_t slot = SlotOf(tag);
  const size_t from = cluster_->OwnerOf(slot), to = (from + 1) % RedisCluster::kNodes;
  for (const char* name : {"a", "b"}) ASSERT_EQ(one.Put(tag + name, name), Outcome::kDone);
  ASSERT_TRUE(cluster_->BeginMove(slot, to));
  EXPECT_EQ(one.Get(tag + "a"), "a");
  ASSERT_EQ(one.Put(tag + "new", "n"), Outcome::kDone) << "it goes where the slot goes";
  EXPECT_EQ(one.Get(tag + "new"), "n");
  EXPECT_EQ(one.Ask({.what = What::kPutNew, .name = tag + "new", .value = BytesOf("x")}).outcome,
            Outcome::kNot);
  ASSERT_TRUE(cluster_->MoveValues(slot, to));
  for (const char* name : {"a", "b"}) EXPECT_EQ(one.Get(tag + name), name);
  EXPECT_EQ(one.Ask({.what = What::kRemove, .name = tag + "b"}).outcome, Outcome::kDone);
  ASSERT_TRUE(cluster_->EndMove(slot, to));
  EXPECT_EQ(one.Get(tag + "a"), "a");
  EXPECT_EQ(one.Get(tag + "b"), "");
  Asking other(cluster_->address());
  EXPECT_EQ(other.Get(tag + "a"), "a");
}

TEST_F(OnCluster, AReplacementWaitsForASlotOnItsWay) {
  Asking one(cluster_->address());
  const std::string name = "{object}";
  const uint16_t slot = SlotOf(name);
  const size_t from = cluster_->OwnerOf(slot), to = (from + 1) % RedisCluster::kNodes;
  ASSERT_EQ(one.Put(name, "first"), Outcome::kDone);
  std::array<std::byte, 16> into;
  const auto seen = one.client.Watch(name, into, AlwaysWaits);
  ASSERT_TRUE(seen && seen->bytes == 5);
  ASSERT_TRUE(cluster_->BeginMove(slot, to));
  ASSERT_TRUE(cluster_->MoveValues(slot, to));
  const auto lost = one.client.Replace(name, BytesOf("second"), AlwaysWaits);
  ASSERT_TRUE(lost);
  EXPECT_FALSE(*lost) << "it is not where it was seen";
  std::thread mover([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    EXPECT_TRUE(cluster_->EndMove(slot, to));
  });
  const auto again = one.client.Watch(name, into, AlwaysWaits);
  mover.join();
  ASSERT_TRUE(again && again->is_done()) << again->words;
  const auto replaced = one.client.Replace(name, BytesOf("second"), AlwaysWaits);
  ASSERT_TRUE(replaced) << replaced.error().message;
  EXPECT_TRUE(*replaced);
  EXPECT_EQ(one.Get(name), "second");
}

TEST_F(OnCluster, AnotherDatabaseIsRefusedInItsWords) {
  RemoteAddress address = cluster_->address();
  address.database = 3;
  RedisClient client(address, "", nullptr);
  const Status opened = client.Open(*Resolve(address), AlwaysWaits);
  ASSERT_FALSE(opened);
  EXPECT_NE(opened.error().message.find("SELECT is not allowed"), std::string::npos)
      << opened.error().message;
}

std::string Elsewhere(const char* how, const RedisFake& to, const std::string& name) {
  return std::string("-") + how + " " + std::to_string(SlotOf(name)) +
         " 127.0.0.1:" + std::to_string(to.address().port) + "\r\n";
}

TEST(RedisClient, ARequestThatGoesRoundIsRefused) {
  RedisFake one, other;
  one.Answer([&](const RedisFake::Words& words) -> std::optional<std::string> {
    if (words[0] != "GET") return std::nullopt;
    return Elsewhere("MOVED", other, words[1]);
  });
  other.Answer([&](const RedisFake::Words& words) -> std::optional<std::string> {
    if (words[0] != "GET") return std::nullopt;
    return Elsewhere("MOVED", one, words[1]);
  });
  Asking asking(one.address());
  std::array<std::byte, 8> into;
  const StoreReply reply = asking.Ask({.what = What::kGet, .name = "n", .into = into});
  EXPECT_TRUE(reply.is_refused());
  EXPECT_EQ(reply.words.substr(0, 5), "MOVED");
  EXPECT_LE(one.Count("GET") + other.Count("GET"), 21u);
  EXPECT_TRUE(asking.client.is_open());
}

TEST(RedisClient, AnAskIsFollowedTwentyTimes) {
  RedisFake one, other;
  const auto asks = [](const RedisFake& to) {
    return [&](const RedisFake::Words& words) -> std::optional<std::string> {
      if (words[0] == "ASKING") return "+OK\r\n";
      if (words[0] != "EXISTS") return std::nullopt;
      return Elsewhere("ASK", to, words[1]);
    };
  };
  one.Answer(asks(other));
  other.Answer(asks(one));
  Asking asking(one.address());
  const StoreReply reply = asking.Ask({.what = What::kFind, .name = "n"});
  EXPECT_TRUE(reply.is_refused());
  EXPECT_EQ(one.Count("EXISTS"), 11u);
  EXPECT_EQ(other.Count("EXISTS"), 10u);
  EXPECT_EQ(one.Count("ASKING") + other.Count("ASKING"), 20u);
  other.Answer([](const RedisFake::Words& words) -> std::optional<std::string> {
    return words[0] == "ASKING" ? std::optional<std::string>("+OK\r\n") : std::nullopt;
  });
  other.Put("n", "value");
  EXPECT_TRUE(asking.Ask({.what = What::kFind, .name = "n"}).is_done());
  EXPECT_EQ(asking.Get("n"), "") << "GET itself was not sent elsewhere";
}

TEST(RedisClient, ErrorsOfAClusterAreItsWords) {
  RedisFake fake;
  Asking asking(fake.address());
  for (const char* words : {"TRYAGAIN Multiple keys request during rehashing of slot",
                            "CLUSTERDOWN The cluster is down"}) {
    fake.Answer([&](const RedisFake::Words& command) -> std::optional<std::string> {
      if (command[0] != "SET") return std::nullopt;
      return std::string("-") + words + "\r\n";
    });
    const StoreReply reply = asking.Ask({.what = What::kPut, .name = "n", .value = BytesOf("v")});
    EXPECT_TRUE(reply.is_refused());
    EXPECT_EQ(reply.words, words);
  }
}

// A store that sends each name to another node does not make the client connect to all of them.
TEST(RedisClient, OnlySoManyNodesAreFollowed) {
  std::vector<std::unique_ptr<RedisFake>> nodes;
  for (size_t i = 0; i < RedisSlots::kMostNodes + 4; ++i) {
    nodes.push_back(std::make_unique<RedisFake>());
  }
  RedisFake seed;
  seed.Answer([&](const RedisFake::Words& words) -> std::optional<std::string> {
    if (words[0] != "EXISTS") return std::nullopt;
    return Elsewhere("MOVED", *nodes[std::stoul(words[1])], words[1]);
  });
  Asking asking(seed.address());
  for (size_t i = 0; i < nodes.size(); ++i) {
    const auto reply =
        asking.client.Ask({.what = What::kFind, .name = std::to_string(i)}, AlwaysWaits);
    if (i + 1 < RedisSlots::kMostNodes) {
      ASSERT_TRUE(reply) << reply.error().message;
    } else {
      ASSERT_FALSE(reply) << i;
      EXPECT_NE(reply.error().message.find("over 32 masters"), std::string::npos);
      EXPECT_EQ(asking.client.num_connections(), 0u);
      break;
    }
  }
}

TEST(RedisClient, APageThatIsCutGoesOnWhenItsNamesAreRemoved) {
  RedisFake fake;
  for (int i = 0; i < 5000; ++i) fake.Put(NameOf(i), "v");
  Asking asking(fake.address());
  std::string page;
  size_t listed = 0;
  do {
    const auto found = asking.client.List("name/", page, AlwaysWaits);
    ASSERT_TRUE(found) << found.error().message;
    EXPECT_LE(found->names.size(), StoreClient::kPageNames);
    for (const std::string& name : found->names) {
      listed += asking.Ask({.what = What::kRemove, .name = name}).is_done();
    }
    page = found->next;
  } while (!page.empty());
  EXPECT_EQ(listed, 5000u);
}

}  // namespace
}  // namespace kvasir
