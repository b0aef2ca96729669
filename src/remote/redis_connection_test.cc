#include "remote/redis_connection.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "base/random.h"
#include "remote/redis_fake_for_test.h"
#include "remote/redis_server_for_test.h"

namespace kvasir {
namespace {

// A connection whose other end sends these bytes.
class Peer {
 public:
  explicit Peer(std::string_view bytes) {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    connection.Adopt(Descriptor(ends[0]));
    other_ = Descriptor(ends[1]);
    EXPECT_EQ(send(ends[1], bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
    shutdown(ends[1], SHUT_WR);
  }
  Result<RedisReply> Read(std::span<std::byte> bulk = {}) {
    return connection.Read(bulk, [] { return true; });
  }
  RedisConnection connection;

 private:
  Descriptor other_;
};

// Where a host has an address that takes nothing, the next one still has its time.
TEST(RedisConnection, AnAddressThatIsSilentLeavesTimeForTheNext) {
  const Descriptor silent(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in here{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof(here);
  auto* const at = reinterpret_cast<sockaddr*>(&here);
  ASSERT_EQ(bind(silent.fd(), at, size), 0);
  ASSERT_EQ(getsockname(silent.fd(), at, &size), 0);
  ASSERT_EQ(listen(silent.fd(), 0), 0);
  std::vector<Descriptor> waiting;  // fill its queue: it answers none after them
  for (int i = 0; i < 4; ++i) {
    waiting.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    (void)connect(waiting.back().fd(), at, size);
  }
  const RedisFake fake;
  SocketAddresses addresses(1, {.size = size});
  std::memcpy(&addresses[0].bytes, &here, size);
  addresses.push_back(Resolve(fake.address())->at(0));
  RedisConnection connection;
  const uint64_t start_ns = MonotonicNs();
  const auto waits = [&] { return MonotonicNs() < start_ns + 500'000'000; };
  const Status opened = connection.Open(fake.address(), addresses, {}, waits);
  EXPECT_TRUE(opened) << opened.error().message;
  EXPECT_GE(MonotonicNs() - start_ns, 200'000'000u) << "the first address takes nothing";
}

TEST(RedisConnection, ReadsEachKindOfReply) {
  Peer peer("+OK\r\n-ERR no\r\n:42\r\n$5\r\nab\r\nc\r\n$-1\r\n*2\r\n$1\r\n0\r\n*0\r\n$0\r\n\r\n");
  std::array<std::byte, 8> bulk;
  EXPECT_TRUE(peer.Read()->is_ok());
  const auto error = peer.Read();
  EXPECT_EQ(error->kind, RedisReply::Kind::kError);
  EXPECT_EQ(error->text, "ERR no");
  EXPECT_EQ(peer.Read()->number, 42);
  EXPECT_EQ(peer.Read(bulk)->number, 5);
  EXPECT_EQ(std::string(reinterpret_cast<char*>(bulk.data()), 5), "ab\r\nc");
  EXPECT_EQ(peer.Read(bulk)->kind, RedisReply::Kind::kNil);
  EXPECT_EQ(peer.Read()->number, 2);
  EXPECT_EQ(peer.Read(bulk)->number, 1);
  EXPECT_EQ(peer.Read()->kind, RedisReply::Kind::kArray);
  EXPECT_EQ(peer.Read()->number, 0);
  EXPECT_EQ(peer.Read().error().code, Code::kIoError);
}

TEST(RedisConnection, RefusesALengthBeyondTheCallersMemory) {
  for (const char* length : {"9", "536870912", "9223372036854775807", "99999999999999999999"}) {
    Peer peer("$" + std::string(length) + "\r\n12345678");
    std::array<std::byte, 8> bulk;
    EXPECT_EQ(peer.Read(bulk).error().code, Code::kCorruption) << length;
    EXPECT_FALSE(peer.connection.is_open());
  }
}

TEST(RedisConnection, RefusesWhatIsNoReply) {
  const std::vector<std::string> wrong = {
      "\r\n",    "x\r\n",        ":\r\n",   ":4x\r\n",
      "$-2\r\n", "$1\r\nab\r\n", "*-7\r\n", "+" + std::string(2000, 'a')};
  for (const std::string& bytes : wrong) {
    Peer peer(bytes);
    std::array<std::byte, 8> bulk;
    EXPECT_EQ(peer.Read(bulk).error().code, Code::kCorruption) << bytes;
    EXPECT_FALSE(peer.connection.is_open());
  }
}

TEST(RedisConnection, RandomBytesNeverOverrunTheCallersMemory) {
  Random random(5);
  constexpr std::string_view kBytes = "+-:$*0123456789\r\n\r\n\r\nabc";
  for (int round = 0; round < 3000; ++round) {
    std::string bytes;
    for (uint64_t i = random.Below(200); i > 0; --i) bytes += kBytes[random.Below(kBytes.size())];
    Peer peer(bytes);
    std::array<std::byte, 24> bulk{};
    while (peer.connection.is_open()) {
      const auto reply = peer.Read(std::span(bulk).first(16));
      if (!reply) break;
      if (reply->kind == RedisReply::Kind::kBulk) {
        ASSERT_LE(reply->number, 16);
      }
    }
    for (size_t i = 16; i < bulk.size(); ++i) ASSERT_EQ(bulk[i], std::byte{0});
  }
}

TEST(RedisConnection, LongValuesComeWhole) {
  const auto server = RedisServer::Start();
  if (server == nullptr) KV_NEEDS("/usr/bin/redis-server");
  std::string value(3'000'000, 'x');
  for (size_t i = 0; i < value.size(); ++i) value[i] = static_cast<char>('a' + i % 23);
  EXPECT_TRUE(server->Ask({"SET", "k", value})->is_ok());
  std::vector<std::byte> bulk(value.size());
  for (int i = 0; i < 3; ++i) {
    const auto got = server->Ask({"GET", "k"}, bulk);
    ASSERT_TRUE(got) << got.error().message;
    EXPECT_EQ(std::memcmp(bulk.data(), value.data(), value.size()), 0);
  }
}

TEST(RedisConnection, AWrongPasswordIsToldInTheServersWords) {
  const auto server = RedisServer::Start();
  if (server == nullptr) KV_NEEDS("/usr/bin/redis-server");
  ASSERT_TRUE(server->Ask({"CONFIG", "SET", "requirepass", "right"})->is_ok());
  RedisConnection connection;
  const auto waits = [] { return true; };
  const auto at = Resolve(server->address());
  ASSERT_TRUE(at);
  const Status wrong = connection.Open(server->address(), *at, "wrong", waits);
  EXPECT_EQ(wrong.error().code, Code::kPermissionDenied);
  EXPECT_NE(wrong.error().message.find("WRONGPASS"), std::string::npos) << wrong.error().message;
  EXPECT_FALSE(connection.is_open());
  ASSERT_TRUE(connection.Open(server->address(), *at, "right", waits));
  EXPECT_EQ(connection.Ask({"PING"}, {}, waits)->text, "PONG");
}

TEST(RemoteAddress, SaysWhatIsWrong) {
  const auto good = ParseRemoteAddress("redis://cache@[::1]:7000/3");
  ASSERT_TRUE(good);
  EXPECT_EQ(good->host, "::1");
  EXPECT_EQ(good->port, 7000);
  EXPECT_EQ(good->user, "cache");
  EXPECT_EQ(good->database, 3u);
  EXPECT_EQ(good->text(), "[::1]:7000");
  EXPECT_FALSE(good->has_tls);
  EXPECT_EQ(ParseRemoteAddress("redis://host")->text(), "host:6379");
  EXPECT_TRUE(ParseRemoteAddress("rediss://host:6380")->has_tls);
  for (const char* url :
       {"http://host", "host:6379", "redis://", "redis://host:0", "redis://host:x",
        "redis://host:70000", "redis://u:password@host", "redis://host/x"}) {
    const auto wrong = ParseRemoteAddress(url);
    ASSERT_FALSE(wrong) << url;
    EXPECT_EQ(wrong.error().field, "remote") << url;
  }
}

}  // namespace
}  // namespace kvasir
