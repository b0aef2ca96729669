#include <gtest/gtest.h>
#include <openssl/ssl.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/strand.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "base/certificates_for_test.h"
#include "base/clock.h"
#include "http/socket_pair_for_test.h"
#include "server/connection.h"
#include "server/fake_engine_for_test.h"

namespace kvasir {
namespace {

// The head of a record and of a client's first message, which announce 200 and 196 bytes.
constexpr std::string_view kHelloBegins("\x16\x03\x01\x00\xc8\x01\x00\x00\xc4\x03\x03", 11);

// A client of a connection with TLS in front of a FakeEngine.
class TlsConnectionTest : public testing::Test {
 protected:
  void Start(uint32_t read_ms, uint32_t idle_ms = 60000) {
    certificates_.Sign("own", "IP:127.0.0.1", 3600);
    options_.tls =
        *TlsFiles::Open(certificates_.CertificateFile("own"), certificates_.KeyFile("own"));
    options_.read_timeout_ms = read_ms;
    options_.idle_timeout_ms = idle_ms;
    service_ = *Service::Make(options_, engine_);
    ASSERT_TRUE(prepare_.Start());
    server_ = std::thread([this] { io_.run(); });
    StartConnection(std::move(sockets_.server),
                    {*service_, options_, connections_, prepare_, prepare_, prepare_});
  }
  void TearDown() override {
    io_.stop();
    server_.join();
  }

  TestCertificates certificates_{testing::TempDir()};
  MemoryQuota small_quota_{1 << 20}, large_quota_{16 << 20};  // must outlive what io_ destroys
  boost::asio::io_context io_, client_io_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{
      io_.get_executor()};
  FakeEngine engine_{nullptr, nullptr};
  ServerOptions options_;
  std::unique_ptr<Service> service_;
  ConnectionSet connections_{1 << 20, 1 << 20, 0};
  PreparePool prepare_{small_quota_, large_quota_};
  SocketPair sockets_{boost::asio::make_strand(io_), client_io_.get_executor()};
  std::thread server_;
};

TEST_F(TlsConnectionTest, AClientThatSaysNothingIsGoneAtTheDeadlineOfAHead) {
  const uint64_t start_ns = MonotonicNs();
  Start(/*read_ms=*/50);
  EXPECT_EQ(sockets_.ReceiveAll(), "");
  EXPECT_GE(MonotonicNs() - start_ns, 50'000'000u);
}

TEST_F(TlsConnectionTest, AHandshakeThatTricklesEndsAtTheSameDeadline) {
  Start(/*read_ms=*/50);
  sockets_.Send(kHelloBegins);
  for (int i = 0; i < 30000 && !sockets_.Readable(/*wait_ms=*/2); ++i) sockets_.Send("a");
  EXPECT_EQ(sockets_.Receive(1), "");
}

TEST_F(TlsConnectionTest, GivesWayToOthersUntilItsHandshakeIsDone) {
  Start(/*read_ms=*/60000);
  sockets_.Send(kHelloBegins);
  while (connections_.MakeRoom(1) == 0) {
  }
  EXPECT_EQ(sockets_.ReceiveAll(), "");
}

TEST_F(TlsConnectionTest, AnIdleConnectionEndsWithAFarewell) {
  Start(/*read_ms=*/60000, /*idle_ms=*/50);
  const std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> context(SSL_CTX_new(TLS_client_method()),
                                                             &SSL_CTX_free);
  ASSERT_EQ(SSL_CTX_load_verify_locations(context.get(), certificates_.ca_file().c_str(), nullptr),
            1);
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  const std::unique_ptr<SSL, void (*)(SSL*)> session(SSL_new(context.get()), &SSL_free);
  ASSERT_EQ(SSL_set_fd(session.get(), sockets_.client.native_handle()), 1);
  ASSERT_EQ(SSL_connect(session.get()), 1);
  constexpr std::string_view kRequest = "GET /health HTTP/1.1\r\nHost: x\r\n\r\n";
  ASSERT_GT(SSL_write(session.get(), kRequest.data(), static_cast<int>(kRequest.size())), 0);
  std::string received;
  char part[4096];
  int got = 0;
  while ((got = SSL_read(session.get(), part, sizeof(part))) > 0) {
    received.append(part, static_cast<size_t>(got));
  }
  EXPECT_TRUE(received.starts_with("HTTP/1.1 200 OK\r\n")) << received;
  EXPECT_TRUE(received.ends_with("{\"status\":\"ok\"}")) << received;
  EXPECT_EQ(SSL_get_error(session.get(), got), SSL_ERROR_ZERO_RETURN);
}

}  // namespace
}  // namespace kvasir
