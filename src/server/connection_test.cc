#include "server/connection.h"

#include <gtest/gtest.h>

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/strand.hpp>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/hex.h"
#include "http/socket_pair_for_test.h"
#include "server/fake_engine_for_test.h"

namespace kvasir {
namespace {

const std::string kBody = R"({"content":"abc"})";
const std::string kTokenize = "POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 17\r\n";

size_t CountOf(std::string_view text, std::string_view what) {
  size_t count = 0;
  for (size_t at = text.find(what); at != text.npos; at = text.find(what, at + 1)) ++count;
  return count;
}

class CountingEngine : public FakeEngine {
 public:
  using FakeEngine::FakeEngine;
  Result<std::vector<RequestId>> SubmitAll(std::vector<GenerateRequest> requests,
                                           IndexedSink sink) override {
    auto ids = FakeEngine::SubmitAll(std::move(requests), std::move(sink));
    ++num_calls;
    return ids;
  }
  const MemoryPlan& plan() const override {
    if (on_plan) on_plan();
    return FakeEngine::plan();
  }
  std::atomic<int> num_calls = 0;  // for the test's thread
  std::function<void()> on_plan;   // called while a generation is prepared
};

// A client of a connection in front of a FakeEngine.
class ConnectionTest : public testing::Test {
 protected:
  void Start(const ServerOptions& options) {
    options_ = options;
    service_ = *Service::Make(options_, engine_);
    ASSERT_TRUE(prepare_.Start());
    server_ = std::thread([this] { io_.run(); });
    StartConnection(std::move(sockets_.server),
                    {*service_, options_, connections_, prepare_, prepare_, prepare_});
  }
  static ServerOptions Timeouts(uint32_t read_ms, uint32_t idle_ms = 60000) {
    ServerOptions options;
    options.read_timeout_ms = read_ms;
    options.idle_timeout_ms = idle_ms;
    return options;
  }
  void TearDown() override {
    io_.stop();
    server_.join();
  }

  static void ExpectTooLate(const std::string& answer) {
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 408 Request Timeout\r\n")) << answer;
    EXPECT_NE(answer.find("\r\nConnection: close\r\n"), std::string::npos);
    EXPECT_NE(answer.find(R"("message":"request: did not arrive in time")"), std::string::npos);
    EXPECT_EQ(CountOf(answer, "HTTP/1.1 "), 1u) << answer;
  }

  // Sends an endless body or head until there is an answer. Each byte alone would be in time.
  void SendUntilAnswered() {
    for (int i = 0; i < 30000 && !sockets_.Readable(/*wait_ms=*/2); ++i) sockets_.Send("a");
  }

  MemoryQuota small_quota_{1 << 20}, large_quota_{16 << 20};  // must outlive what io_ destroys
  boost::asio::io_context io_, client_io_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{
      io_.get_executor()};
  const std::unique_ptr<Tokenizer> tokenizer_ =
      *Tokenizer::Parse(TinyTokenizerJson(), kTinyTokenizerConfig);
  CountingEngine engine_{tokenizer_.get(), nullptr};
  ServerOptions options_;
  std::unique_ptr<Service> service_;
  ConnectionSet connections_{1 << 20, 1 << 20, 0};
  PreparePool prepare_{small_quota_, large_quota_};
  SocketPair sockets_{boost::asio::make_strand(io_), client_io_.get_executor()};
  std::thread server_;
};

TEST_F(ConnectionTest, AHeadThatStopsIsAnswered408) {
  Start(Timeouts(/*read_ms=*/50));
  sockets_.Send("GET /health HT");
  ExpectTooLate(sockets_.ReceiveAll());
}

TEST_F(ConnectionTest, AHeadThatTricklesIsAnswered408) {
  Start(Timeouts(/*read_ms=*/50));
  sockets_.Send("GET /health HTTP/1.1\r\nX: ");
  SendUntilAnswered();
  ExpectTooLate(sockets_.ReceiveAll());
}

TEST_F(ConnectionTest, ABodyThatStopsIsAnswered408) {
  Start(Timeouts(/*read_ms=*/50));
  sockets_.Send(kTokenize + "\r\n" + kBody.substr(1));
  ExpectTooLate(sockets_.ReceiveAll());
}

TEST_F(ConnectionTest, ABodyThatTricklesIsAnswered408) {
  Start(Timeouts(/*read_ms=*/50));
  sockets_.Send("POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n");
  SendUntilAnswered();
  ExpectTooLate(sockets_.ReceiveAll());
}

TEST_F(ConnectionTest, ABodyThatWasAskedForAndDoesNotComeIsAnswered408) {
  Start(Timeouts(/*read_ms=*/500));  // enough to read the head on a busy machine
  sockets_.Send(kTokenize + "Expect: 100-continue\r\n\r\n");
  const std::string go_on = "HTTP/1.1 100 Continue\r\n\r\n";
  EXPECT_EQ(sockets_.Receive(go_on.size()), go_on);
  ExpectTooLate(sockets_.ReceiveAll());
}

TEST_F(ConnectionTest, NoDeadlineIsLeftOfARequestThatWasAnswered) {
  Start(Timeouts(/*read_ms=*/500, /*idle_ms=*/700));
  const uint64_t start_ns = MonotonicNs();
  sockets_.Send(kTokenize + "\r\n" + kBody);
  // The deadline passes, and the connection is closed without an answer.
  const std::string answer = sockets_.ReceiveAll();
  EXPECT_GE(MonotonicNs() - start_ns, 700'000'000u);  // idle_ms, not read_ms
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 OK\r\n")) << answer;
  EXPECT_NE(answer.find("\r\nConnection: keep-alive\r\n"), std::string::npos);
  EXPECT_EQ(CountOf(answer, "HTTP/1.1 "), 1u) << answer;
}

TEST_F(ConnectionTest, WhoAsksNothingIsClosedWithoutAWord) {
  Start(Timeouts(/*read_ms=*/60000, /*idle_ms=*/20));
  sockets_.Send("\r\n");  // an empty line does not begin a request
  EXPECT_EQ(sockets_.ReceiveAll(), "");
}

// Waits until `connections` is empty; false after a timeout.
bool Empties(const ConnectionSet& connections) {
  const uint64_t end_ns = MonotonicNs() + 60'000'000'000;
  while (connections.size() > 0 && MonotonicNs() < end_ns) std::this_thread::yield();
  return connections.size() == 0;
}

TEST_F(ConnectionTest, AHandlerThatThrowsEndsItsConnection) {
  ServerOptions options;
  options.on_request = [](std::string_view) { throw std::bad_alloc(); };
  Start(options);
  sockets_.Send(kTokenize + "\r\n" + kBody);
  EXPECT_TRUE(sockets_.ReceiveAll().starts_with("HTTP/1.1 200 OK\r\n"));  // up to its end
  EXPECT_TRUE(Empties(connections_));
}

TEST_F(ConnectionTest, WhatIsThrownThatIsNoExceptionEndsItToo) {
  ServerOptions options;
  options.on_request = [](std::string_view) { throw 1; };
  Start(options);
  sockets_.Send("GET / HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(CountOf(sockets_.ReceiveAll(), "HTTP/1.1 200 OK\r\n"), 1u);
  EXPECT_TRUE(Empties(connections_));
}

TEST_F(ConnectionTest, OneThatSendsSlowlyMakesRoom) {
  Start({});
  sockets_.Send("GET /health HTTP/1.1\r\nX: ");
  while (connections_.MakeRoom(1) == 0) std::this_thread::yield();
  EXPECT_EQ(sockets_.ReceiveAll(), "");
  EXPECT_TRUE(Empties(connections_));
}

TEST_F(ConnectionTest, OneWhoseAnswerIsMadeMakesNoRoom) {
  Start({});
  const std::string body = R"({"prompt":[1,2],"max_tokens":2})";
  sockets_.Send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: " +
                std::to_string(body.size()) + "\r\n\r\n" + body);
  while (engine_.num_calls == 0) std::this_thread::yield();
  EXPECT_EQ(connections_.MakeRoom(1), 0u);
}

TEST_F(ConnectionTest, AKeyThatIsRemovedWhileItsRequestIsPreparedRunsNothing) {
  const std::string path = testing::TempDir() + "/connection_test.json";
  std::ofstream(path) << R"({"tenants": {"a": {}}})";
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  ServerOptions options;
  options.keys_path = path;
  const std::string hash = ToHex(Sha256Of("secret"));
  options.keys =
      *ParseKeysFile(R"({"tenants": {"a": {"keys": [{"sha256": ")" + hash + R"("}]}}})", path);
  Start(options);
  engine_.on_plan = [this] { EXPECT_TRUE(service_->ReloadKeys()); };
  const std::string body = R"({"prompt":[1,2],"max_tokens":2})";
  sockets_.Send(
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nx-api-key: secret\r\nConnection: close\r\n"
      "Content-Length: " +
      std::to_string(body.size()) + "\r\n\r\n" + body);
  const std::string answer = sockets_.ReceiveAll();
  EXPECT_NE(answer.find("the API key of this request was removed"), std::string::npos) << answer;
  EXPECT_EQ(engine_.num_calls, 0);
  std::filesystem::remove(path);
}

TEST_F(ConnectionTest, WhatCannotBeReadIsAnsweredByItself) {
  Start({});
  const std::string before = "HEAD /health HTTP/1.1\r\nHost: x\r\nOrigin: http://page\r\n\r\n";
  sockets_.Send(before + "GET /health HTTP/9.9\r\n\r\n");
  const std::string answer = sockets_.ReceiveAll();
  const size_t second = answer.find("HTTP/1.1 400 Bad Request\r\n");
  ASSERT_NE(second, std::string::npos) << answer;
  EXPECT_TRUE(answer.substr(0, second).ends_with("\r\n\r\n"));  // HEAD gets no body
  EXPECT_EQ(CountOf(answer, "Access-Control-Allow-Origin"), 1u);
  const std::string_view error = std::string_view(answer).substr(second);
  EXPECT_NE(error.find("\r\n\r\n{\"error\":"), error.npos) << error;
}

}  // namespace
}  // namespace kvasir
