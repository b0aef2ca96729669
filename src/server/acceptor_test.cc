#include "server/acceptor.h"

#include <gtest/gtest.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address_v4.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/write.hpp>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/fake_engine_for_test.h"

namespace kvasir {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using SocketError = boost::system::error_code;

const std::string kHealth = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";

// An acceptor with all that its connections need, in front of a FakeEngine.
class AcceptorTest : public testing::Test {
 protected:
  ~AcceptorTest() override {
    io_.stop();
    if (thread_.joinable()) thread_.join();
  }

  // Listens at hosts on one port, which the system chooses.
  Status Listen(std::vector<std::string> hosts, uint16_t port = 0, uint32_t max_connections = 64) {
    options_.hosts = std::move(hosts);
    options_.port = port;
    options_.max_connections = max_connections;
    service_ = *Service::Make(options_, engine_);
    EXPECT_TRUE(prepare_.Start());
    parts_ = std::make_unique<ConnectionParts>(
        ConnectionParts{*service_, options_, connections_, prepare_, prepare_, prepare_});
    acceptor_ = std::make_unique<Acceptor>(io_, strand_, *parts_);
    KV_TRY(acceptor_->Listen());
    const std::string lines = acceptor_->Lines();  // "listening on http://127.0.0.1:8080\n"
    port_ =
        static_cast<uint16_t>(std::stoi(lines.substr(lines.find(':', lines.find("//") + 2) + 1)));
    return {};
  }
  void Start() {
    asio::post(strand_, [this] { acceptor_->Start(); });
    thread_ = std::thread([this] { io_.run(); });
  }
  // Closes the acceptor, as the server does.
  void Close() {
    std::promise<bool> is_open;
    asio::post(strand_, [&] {
      acceptor_->Close();
      is_open.set_value(acceptor_->is_open());
    });
    EXPECT_FALSE(is_open.get_future().get());
  }
  uint16_t port() const { return port_; }
  SocketError Connect(tcp::socket* client) const {
    SocketError error;
    client->connect({asio::ip::address_v4::loopback(), port()}, error);
    return error;
  }
  // Returns whether a request is answered with 200; the rest of the answer may still come.
  static bool IsServed(tcp::socket& client) {
    SocketError error;
    asio::write(client, asio::buffer(kHealth), error);
    std::string answer;
    asio::read_until(client, asio::dynamic_buffer(answer), "HTTP/1.1 200 OK", error);
    return !error;
  }

  FakeEngine engine_{nullptr, nullptr};
  ServerOptions options_;
  MemoryQuota small_quota_{1 << 20}, large_quota_{16 << 20};  // must outlive what io_ destroys
  asio::io_context io_, client_io_;
  const Acceptor::Strand strand_ = asio::make_strand(io_);
  asio::executor_work_guard<asio::io_context::executor_type> work_{io_.get_executor()};
  std::unique_ptr<Service> service_;
  ConnectionSet connections_{1 << 20, 1 << 20, 0};
  PreparePool prepare_{small_quota_, large_quota_};
  std::unique_ptr<ConnectionParts> parts_;
  std::unique_ptr<Acceptor> acceptor_;
  std::thread thread_;
  uint16_t port_ = 0;  // where it has listened
};

TEST_F(AcceptorTest, ConnectionsAreServedUntilItCloses) {
  ASSERT_TRUE(Listen({"127.0.0.1"}));
  EXPECT_TRUE(acceptor_->CheckFiles());
  Start();
  tcp::socket client(client_io_), later(client_io_);
  ASSERT_FALSE(Connect(&client));
  EXPECT_TRUE(IsServed(client));
  Close();
  EXPECT_TRUE(Connect(&later)) << "it does not listen any more";
  EXPECT_TRUE(IsServed(client)) << "its connections stay";
}

TEST_F(AcceptorTest, AllAddressesHaveOnePort) {
  ASSERT_TRUE(Listen({"127.0.0.1", "127.0.0.2"}));
  const std::string at = std::to_string(port());
  EXPECT_EQ(acceptor_->Lines(),
            "listening on http://127.0.0.1:" + at + "\nlistening on http://127.0.0.2:" + at + "\n");
  EXPECT_TRUE(acceptor_->IsLoopback());
}

TEST_F(AcceptorTest, AnAddressThatCannotBeUsedIsNamed) {
  const Status unknown = Listen({"127.0.0.1:80"});
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code, Code::kInvalidArgument);
  EXPECT_EQ(unknown.error().field, "host");
  tcp::acceptor taken(client_io_, {asio::ip::address_v4::loopback(), 0});
  const uint16_t port = taken.local_endpoint().port();
  const Status busy = Listen({"127.0.0.1"}, port);
  ASSERT_FALSE(busy);
  EXPECT_EQ(busy.error().code, Code::kIoError);
  EXPECT_NE(busy.error().message.find(std::to_string(port)), std::string::npos);
}

TEST_F(AcceptorTest, ANewConnectionTakesThePlaceOfOneThatWaits) {
  ASSERT_TRUE(Listen({"127.0.0.1"}, 0, /*max_connections=*/2));
  Start();
  std::vector<tcp::socket> clients;
  for (int i = 0; i < 3; ++i) {
    clients.emplace_back(client_io_);
    ASSERT_FALSE(Connect(&clients.back()));
    EXPECT_TRUE(IsServed(clients.back())) << i;
  }
  EXPECT_LE(connections_.num_staying(), 2u);
  std::string rest;
  SocketError error;
  asio::read(clients[0], asio::dynamic_buffer(rest), error);
  EXPECT_EQ(error, asio::error::eof) << "the first one has waited longest";
}

}  // namespace
}  // namespace kvasir
