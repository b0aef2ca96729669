// A fleet's store with TLS: what is believed, and what is not.
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "base/certificates_for_test.h"
#include "remote/redis_server_for_test.h"
#include "remote/remote_on_fake_for_test.h"

namespace kvasir {
namespace {

class RemoteTls : public testing::Test {
 protected:
  // Starts a server with a certificate of this name, for this host.
  void Start(const std::string& alternative, long ends_in_s = 3600) {
    certificates_.Sign("server", alternative, ends_in_s);
    server_ = RedisServer::Start({"--tls-port", RedisServer::kPort, "--tls-cert-file",
                                  certificates_.CertificateFile("server"), "--tls-key-file",
                                  certificates_.KeyFile("server"), "--tls-ca-cert-file",
                                  certificates_.ca_file(), "--tls-auth-clients", "no"});
    if (server_ != nullptr) port_ = server_->ports()[0];
  }
  RemoteTierOptions Options(uint16_t port, const std::string& ca_file) {
    RemoteTierOptions options =
        SmallOptions({.host = host_, .port = port, .user = {}, .has_tls = true});
    auto tls = TlsContext::Create(ca_file);
    EXPECT_TRUE(tls) << tls.error().message;
    if (tls) options.tls = *tls;
    return options;
  }
  // Returns why a tier is off; "": it is on.
  std::string WhyOff(uint16_t port, const std::string& ca_file) {
    auto opened = RemoteTier::Open(Options(port, ca_file));
    EXPECT_TRUE(opened);
    TierDriver driver(**opened);
    EXPECT_TRUE(driver.WaitUntil(
        [&] { return (*opened)->Remote().state != RemoteStats::State::kConnecting; }));
    return (*opened)->Remote().reason;
  }

  std::string host_ = "127.0.0.1";
  TestCertificates certificates_{testing::TempDir()};
  uint16_t port_ = 0;
  std::unique_ptr<RedisServer> server_;
};

TEST_F(RemoteTls, WorksAsWithoutIt) {
  Start("IP:127.0.0.1");
  if (server_ == nullptr) KV_NEEDS("/usr/bin/redis-server");
  auto opened = RemoteTier::Open(Options(port_, certificates_.ca_file()));
  ASSERT_TRUE(opened) << opened.error().message;
  RemoteTier& tier = **opened;
  TierDriver driver(tier);
  ASSERT_TRUE(driver.WaitUntil([&] { return tier.Remote().state == RemoteStats::State::kOn; }))
      << tier.Remote().reason;
  ASSERT_TRUE(tier.ReadyOwner(TestRecord::Owner(0)));
  driver.Look(FaultRecord(0, 0));
  for (uint32_t i = 0; i < 20; ++i) ASSERT_TRUE(driver.Write(FaultRecord(0, i))) << i;
  ASSERT_TRUE(driver.Flush());
  for (uint32_t i = 0; i < 20; ++i) {
    EXPECT_EQ(driver.ReadBack(FaultRecord(0, i)), TierDriver::Read::kRight) << i;
  }
  const auto erased = driver.Erase(TestRecord::Owner(0));
  ASSERT_TRUE(erased) << erased.error().message;
  EXPECT_EQ(erased->remote->records, 20u);
  EXPECT_EQ(tier.Remote().fault_io, 0u);
}

TEST_F(RemoteTls, AConnectionWaitsBetweenCommandsAndSeesTheEnd) {
  Start("DNS:localhost");
  if (server_ == nullptr) KV_NEEDS("/usr/bin/redis-server");
  const auto tls = TlsContext::Create(certificates_.ca_file());
  ASSERT_TRUE(tls);
  const RemoteAddress address{.host = "localhost", .port = port_, .user = {}, .has_tls = true};
  RemoteAddress numbers = address;
  numbers.host = "127.0.0.1";
  RedisConnection connection;
  const auto waits = [] { return true; };
  const Status connected = connection.Open(address, *Resolve(numbers), "", waits, tls->get());
  ASSERT_TRUE(connected) << connected.error().message;
  const std::string value(3 << 20, 'v');
  std::vector<std::byte> bulk(value.size());
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(connection.Ask({"SET", "k", value}, {}, waits)->is_ok());
    const auto got = connection.Ask({"GET", "k"}, bulk, waits);
    ASSERT_TRUE(got) << got.error().message;
    EXPECT_EQ(std::memcmp(bulk.data(), value.data(), value.size()), 0);
    connection.CloseStale();
    ASSERT_TRUE(connection.is_open()) << "what TLS itself sends is not an answer";
  }
  server_->Stop();
  for (int i = 0; i < 1000 && connection.is_open(); ++i) {
    connection.CloseStale();
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_FALSE(connection.is_open());
}

TEST_F(RemoteTls, ConnectionsTakeNoMoreThanIsPlanned) {
  Start("IP:127.0.0.1");
  if (server_ == nullptr) KV_NEEDS("/usr/bin/redis-server");
  const auto tls = TlsContext::Create(certificates_.ca_file());
  ASSERT_TRUE(tls);
  const RemoteAddress address{.host = "127.0.0.1", .port = port_, .user = {}, .has_tls = true};
  const std::string value(1 << 20, 'v');
  ASSERT_TRUE(server_->Ask({"SET", "k", value})->is_ok());
  std::vector<std::byte> bulk(value.size());
  const auto in_use = [] {
    const struct mallinfo2 now = mallinfo2();
    return now.uordblks + now.hblkhd;
  };
  size_t most = 0;
  const auto waits = [&] {
    most = std::max(most, in_use());
    return true;
  };
  // Reads on all of `num_connections` at once, and returns what they took at most.
  const auto bytes_of = [&](size_t num_connections) {
    const size_t before = in_use();
    most = before;
    std::vector<RedisConnection> connections(num_connections);
    for (RedisConnection& one : connections) {
      const Status connected = one.Open(address, *Resolve(address), "", waits, tls->get());
      EXPECT_TRUE(connected) << connected.error().message;
    }
    for (RedisConnection& one : connections)
      EXPECT_TRUE(one.Send("*2\r\n$3\r\nGET\r\n$1\r\nk\r\n", waits));
    for (RedisConnection& one : connections) {
      const auto got = one.Read(bulk, waits);
      EXPECT_TRUE(got && got->number == static_cast<int64_t>(value.size()));
      waits();
    }
    return most - before;
  };
  std::ignore = bytes_of(1);  // what stays is there
  constexpr size_t kMany = 20;
  const size_t bytes = bytes_of(kMany);
  EXPECT_LT(bytes, kMany * (RedisConnection::kBufferBytes + RedisConnection::kTlsBytes));
  RecordProperty("bytes_each", std::to_string(bytes / kMany));
}

TEST_F(RemoteTls, WhoIsNotVerifiedIsNotAsked) {
  struct Case {
    std::string alternative;
    long ends_in_s;
    bool is_ours;  // whether its authority is the one that is trusted
    std::string why;
  };
  const TestCertificates others(testing::TempDir());
  for (const Case& one : {
           Case{"IP:127.0.0.1", 3600, true, ""},
           Case{"IP:127.0.0.1", 3600, false, "self-signed certificate in certificate chain"},
           Case{"IP:127.0.0.2", 3600, true, "IP address mismatch"},
           Case{"DNS:localhost", 3600, true, "IP address mismatch"},
           Case{"IP:127.0.0.1", -60, true, "certificate has expired"},
       }) {
    Start(one.alternative, one.ends_in_s);
    if (server_ == nullptr) KV_NEEDS("/usr/bin/redis-server");
    const std::string why = WhyOff(port_, (one.is_ours ? certificates_ : others).ca_file());
    if (one.why.empty()) {
      EXPECT_EQ(why, "");
    } else {
      EXPECT_NE(why.find("the certificate of 127.0.0.1 is refused"), std::string::npos) << why;
      EXPECT_NE(why.find(one.why), std::string::npos) << why;
    }
  }
  host_ = "localhost";
  Start("DNS:example.org");
  const std::string why = WhyOff(port_, certificates_.ca_file());
  EXPECT_NE(why.find("hostname mismatch"), std::string::npos) << why;
}

TEST_F(RemoteTls, AServerWithoutItIsAReason) {
  Start("IP:127.0.0.1");
  if (server_ == nullptr) KV_NEEDS("/usr/bin/redis-server");
  const std::string why = WhyOff(server_->address().port, certificates_.ca_file());
  EXPECT_NE(why.find("does the server speak TLS at this port?"), std::string::npos) << why;
  // One that says nothing takes half a second.
  const Descriptor silent(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in here{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof(here);
  ASSERT_EQ(bind(silent.fd(), reinterpret_cast<sockaddr*>(&here), size), 0);
  ASSERT_EQ(getsockname(silent.fd(), reinterpret_cast<sockaddr*>(&here), &size), 0);
  ASSERT_EQ(listen(silent.fd(), 4), 0);
  const std::string late = WhyOff(ntohs(here.sin_port), certificates_.ca_file());
  EXPECT_NE(late.find("takes too long"), std::string::npos) << late;
}

TEST(TlsContext, AFileWithoutACertificateIsAnError) {
  for (const char* file : {"/nowhere", "/dev/null"}) {
    const auto made = TlsContext::Create(file);
    ASSERT_FALSE(made) << file;
    EXPECT_EQ(made.error().field, "remote_ca");
    EXPECT_NE(made.error().message.find(file), std::string::npos) << made.error().message;
  }
  EXPECT_TRUE(TlsContext::Create(""));
}

}  // namespace
}  // namespace kvasir
