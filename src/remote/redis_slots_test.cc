#include "remote/redis_slots.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <string>
#include <vector>

#include "base/random.h"

namespace kvasir {
namespace {

// What a node answers to CLUSTER SLOTS.
class SlotsPeer {
 public:
  Result<RedisSlots> Read(std::string_view bytes) {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    connection.Adopt(Descriptor(ends[0]));
    const Descriptor other(ends[1]);
    EXPECT_EQ(send(ends[1], bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
    shutdown(ends[1], SHUT_WR);
    return ReadSlots(connection, {.host = "asked", .port = 7}, [] { return true; });
  }
  RedisConnection connection;
};

std::string SlotsNode(const std::string& host, int port) {
  return "*4\r\n" + host + ":" + std::to_string(port) +
         "\r\n$2\r\nid\r\n*2\r\n$8\r\nhostname\r\n$1\r\nh\r\n";
}

TEST(RedisSlots, AreThoseOfRedis) {
  EXPECT_EQ(SlotOf("123456789"), 0x31C3 % kRedisSlots);
  EXPECT_EQ(SlotOf(""), 0);
  EXPECT_EQ(SlotOf("foo"), 12182);
  EXPECT_EQ(SlotOf("{foo}.more"), SlotOf("foo"));
  EXPECT_EQ(SlotOf("a{foo}{bar}"), SlotOf("foo"));
  EXPECT_NE(SlotOf("{}foo"), SlotOf("foo"));
  EXPECT_NE(SlotOf("{foo"), SlotOf("foo"));
}

TEST(RedisSlots, ARedirectNamesANode) {
  const auto moved = ParseRedirect("MOVED 3999 127.0.0.1:6381");
  ASSERT_TRUE(moved);
  EXPECT_FALSE(moved->is_ask);
  EXPECT_EQ(moved->slot, 3999);
  EXPECT_EQ(moved->to, (RedisNode{"127.0.0.1", 6381}));
  const auto asks = ParseRedirect("ASK 16383 ::1:7000");
  ASSERT_TRUE(asks);
  EXPECT_TRUE(asks->is_ask);
  EXPECT_EQ(asks->to, (RedisNode{"::1", 7000}));
  EXPECT_EQ(ParseRedirect("MOVED 1 :7000")->to, (RedisNode{"", 7000}));
  for (const char* other :
       {"ERR MOVED 1 a:1", "MOVED", "MOVED x a:1", "MOVED 16384 a:1", "MOVED 1 a", "MOVED 1 a:0",
        "MOVED 1 a:70000", "MOVED 1 a:b", "ASK 1a:2", "TRYAGAIN Multiple keys",
        "CLUSTERDOWN Hash slot not served"}) {
    EXPECT_FALSE(ParseRedirect(other)) << other;
  }
}

TEST(RedisSlots, SayWhichMasterHasEach) {
  SlotsPeer peer;
  const auto slots = peer.Read(
      "*3\r\n"
      "*4\r\n:0\r\n:9\r\n" +
      SlotsNode("$1\r\na\r\n", 1) + SlotsNode("$7\r\nreplica\r\n", 2) + "*3\r\n:10\r\n:16000\r\n" +
      SlotsNode("$-1\r\n", 3) + "*3\r\n:16001\r\n:16383\r\n*2\r\n$1\r\na\r\n:1\r\n");
  ASSERT_TRUE(slots) << slots.error().message;
  ASSERT_EQ(slots->nodes.size(), 2u);
  EXPECT_EQ(slots->nodes[0], (RedisNode{"a", 1}));
  EXPECT_EQ(slots->nodes[1], (RedisNode{"asked", 3}))
      << "no host: that of the node which was asked";
  EXPECT_EQ(slots->node_of[9], 0);
  EXPECT_EQ(slots->node_of[10], 1);
  EXPECT_EQ(slots->node_of[16000], 1);
  EXPECT_EQ(slots->node_of[16383], 0);
}

TEST(RedisSlots, WhatIsNoMapIsRefused) {
  SlotsPeer peer;
  const std::string node = SlotsNode("$1\r\na\r\n", 1);
  for (const std::string& bytes : std::vector<std::string>{
           "+OK\r\n", "*-1\r\n", "*1\r\n:3\r\n", "*1\r\n*3\r\n:0\r\n:16384\r\n" + node,
           "*1\r\n*3\r\n:-1\r\n:3\r\n" + node, "*1\r\n*2\r\n:0\r\n:3\r\n",
           "*1\r\n*3\r\n:0\r\n:3\r\n*2\r\n:5\r\n:1\r\n",
           "*1\r\n*3\r\n:0\r\n:3\r\n*2\r\n$1\r\na\r\n:70000\r\n",
           "*1\r\n*3\r\n:0\r\n:3\r\n*2\r\n$300\r\n" + std::string(300, 'a') + "\r\n:7\r\n",
           "*1\r\n*4\r\n:0\r\n:3\r\n" + node + "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n",
           "*99999999\r\n", "*1\r\n*99999999\r\n:0\r\n:3\r\n" + node}) {
    const auto slots = peer.Read(bytes);
    ASSERT_FALSE(slots) << bytes;
    EXPECT_NE(slots.error().code, Code::kUnavailable) << bytes;
    EXPECT_FALSE(peer.connection.is_open()) << bytes;
  }
  const auto refused = peer.Read("-ERR This instance has cluster support disabled\r\n");
  EXPECT_EQ(refused.error().code, Code::kUnavailable);
  EXPECT_TRUE(peer.connection.is_open());
  EXPECT_EQ(peer.Read("*0\r\n").error().code, Code::kUnavailable);
  std::string many = "*40\r\n";
  for (int i = 0; i < 40; ++i) {
    many += "*3\r\n:" + std::to_string(i) + "\r\n:" + std::to_string(i) + "\r\n" +
            SlotsNode("$1\r\na\r\n", i + 1);
  }
  const auto too_many = peer.Read(many);
  ASSERT_FALSE(too_many);
  EXPECT_NE(too_many.error().message.find("over 32 masters"), std::string::npos);
}

TEST(RedisSlots, RandomBytesAreNoMap) {
  Random random(11);
  constexpr std::string_view kPieces[] = {"*", ":", "$", "-", "+", "1", "3", "0", "\r\n", "a"};
  SlotsPeer peer;
  for (int round = 0; round < 3000; ++round) {
    std::string bytes = "*" + std::to_string(random.Below(4)) + "\r\n";
    for (uint64_t i = random.Below(80); i > 0; --i) bytes += kPieces[random.Below(10)];
    const auto slots = peer.Read(bytes);
    if (slots) {
      ASSERT_LE(slots->nodes.size(), RedisSlots::kMostNodes);
    }
  }
}

}  // namespace
}  // namespace kvasir
