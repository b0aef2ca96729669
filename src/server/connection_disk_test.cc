// What waits for a disk, computes for long or compiles runs on none of the threads that read and
// write sockets, whatever becomes of its client.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/strand.hpp>
#include <filesystem>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "http/request_memory.h"
#include "http/socket_pair_for_test.h"
#include "server/connection.h"
#include "server/fake_engine_for_test.h"

namespace kvasir {
namespace {

// Threads that called something, in the order of their calls. Thread-safe.
class Callers {
 public:
  void Note() {
    const MutexLock lock(mutex_);
    threads_.push_back(std::this_thread::get_id());
  }
  size_t count() const {
    const MutexLock lock(mutex_);
    return threads_.size();
  }
  std::thread::id last() const {
    const MutexLock lock(mutex_);
    return threads_.back();
  }

 private:
  mutable Mutex mutex_;
  std::vector<std::thread::id> threads_ KV_GUARDED_BY(mutex_);
};

template <typename Condition>
bool Comes(const Condition& condition) {
  const uint64_t end_ns = MonotonicNs() + 20'000'000'000;
  while (!condition() && MonotonicNs() < end_ns) std::this_thread::yield();
  return condition();
}

// Holds a thread of a pool, whose id it has, until it ends.
class HeldThread {
 public:
  HeldThread(PreparePool& pool, size_t body_bytes) {
    pool.Run("other", body_bytes, [this](MemoryQuota&) {
      entered_.set_value(std::this_thread::get_id());
      released_.get_future().wait();
      left_.set_value();
    });
    id = entered_.get_future().get();
  }
  ~HeldThread() { Release(); }
  void Release() {
    if (std::exchange(is_held_, false)) {
      released_.set_value();
      left_.get_future().wait();
    }
  }

  std::thread::id id;

 private:
  bool is_held_ = true;
  std::promise<std::thread::id> entered_;
  std::promise<void> released_, left_;
};

class NotingEngine : public FakeEngine {
 public:
  using FakeEngine::FakeEngine;
  Status CompileFormats(std::span<GenerateRequest>) override {
    compiles.Note();
    if (on_compile) on_compile();
    return compiled;
  }
  void Forget(ForgetRequest request, ErasureSink done) override {
    forgets.Note();
    FakeEngine::Forget(std::move(request), std::move(done));
  }
  void ReserveDisk(uint64_t) override { writes.Note(); }  // before a session's row is written
  const MemoryPlan& plan() const override {
    if (on_plan) on_plan();
    return FakeEngine::plan();
  }

  Callers compiles, forgets, writes;
  Status compiled;
  std::function<void()> on_compile;
  std::function<void()> on_plan;  // called while a forget is prepared
};

class ConnectionDiskTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "/kvasir-connection-XXXXXX";
    parent_ = mkdtemp(pattern.data());
    engine_.HaveDisk(parent_);
    service_ = *Service::Make(options_, engine_);
    for (PreparePool* pool : {&prepare_, &grammars_, &disk_}) ASSERT_TRUE(pool->Start());
    server_ = std::thread([this] { io_.run(); });
    StartConnection(std::move(sockets_.server),
                    {*service_, options_, connections_, prepare_, grammars_, disk_});
  }
  void TearDown() override {
    io_.stop();
    if (server_.joinable()) server_.join();
    std::filesystem::remove_all(parent_);
  }

  void Send(const std::string& method, const std::string& target, const std::string& body = "") {
    sockets_.Send(method + " " + target + " HTTP/1.1\r\nHost: x\r\nContent-Length: " +
                  std::to_string(body.size()) + "\r\n\r\n" + body);
  }
  // Returns the status and body of the next answer, which is not in chunks.
  std::pair<int, std::string> Receive() {
    std::string head;
    while (!head.ends_with("\r\n\r\n")) {
      const std::string byte = sockets_.Receive(1);
      if (byte.empty()) return {0, head};
      head += byte;
    }
    const std::string_view name = "Content-Length: ";
    const size_t length = std::stoul(head.substr(head.find(name) + name.size()));
    return {std::stoi(head.substr(9, 3)), sockets_.Receive(length)};
  }
  std::string MakeSession() {
    Send("POST", "/v1/sessions", R"({"messages":[{"role":"user","content":"hi"}]})");
    const auto [status, body] = Receive();
    EXPECT_EQ(status, 201) << body;
    const auto made = nlohmann::json::parse(body);
    EXPECT_EQ(made["durable"], true);
    return "/v1/sessions/" + made["id"].get<std::string>();
  }
  void SendGenerate(const std::string& session) {
    Send("POST", session + "/generate", R"({"grammar":"root ::= \"a\""})");
  }
  // Resets the connection from the client's end, and waits until the server has noticed.
  void HangUp() {
    sockets_.client.set_option(boost::asio::socket_base::linger(true, 0));
    sockets_.client.close();
    ASSERT_TRUE(Comes([&] { return connections_.size() == 0; }));
  }

  std::filesystem::path parent_;
  MemoryQuota small_quota_{1 << 20}, large_quota_{16 << 20};  // must outlive what io_ destroys
  boost::asio::io_context io_, client_io_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{
      io_.get_executor()};
  const std::unique_ptr<Tokenizer> tokenizer_ =
      *Tokenizer::Parse(TinyTokenizerJson(), kTinyTokenizerConfig);
  const std::unique_ptr<ChatTemplate> template_ = *ChatTemplate::Parse(
      "{% for m in messages %}{{ m['role'] + ':' + m['content'] + '<|end|>' }}{% endfor %}");
  NotingEngine engine_{tokenizer_.get(), template_.get()};
  const ServerOptions options_;
  std::unique_ptr<Service> service_;
  ConnectionSet connections_{1 << 20, 1 << 20, 0};
  PreparePool prepare_{small_quota_, large_quota_};
  PreparePool grammars_{small_quota_, large_quota_};
  PreparePool disk_{small_quota_, large_quota_};
  SocketPair sockets_{boost::asio::make_strand(io_), client_io_.get_executor()};
  std::thread server_;
};

// The session's file learns what the session has read.
TEST_F(ConnectionDiskTest, AGrammarThatDoesNotCompileHasItsSessionWrittenByTheDisksThreads) {
  engine_.compiled = FailField(Code::kInvalidArgument, "grammar", "is wrong");
  const std::string session = MakeSession();
  const size_t before = engine_.writes.count();
  SendGenerate(session);
  const auto [status, body] = Receive();
  EXPECT_EQ(status, 400) << body;
  ASSERT_TRUE(Comes([&] { return engine_.writes.count() > before; }));
  EXPECT_NE(engine_.writes.last(), server_.get_id());
  EXPECT_NE(engine_.writes.last(), engine_.compiles.last());
}

TEST_F(ConnectionDiskTest, AClientThatLeavesWhileItsGrammarIsCompiledToo) {
  std::promise<void> left;
  engine_.on_compile = [&] { left.get_future().wait(); };
  const std::string session = MakeSession();
  const size_t before = engine_.writes.count();
  SendGenerate(session);
  ASSERT_TRUE(Comes([&] { return engine_.compiles.count() == 1; }));
  HangUp();
  left.set_value();
  ASSERT_TRUE(Comes([&] { return engine_.writes.count() > before; }));
  EXPECT_NE(engine_.writes.last(), server_.get_id());
  EXPECT_NE(engine_.writes.last(), engine_.compiles.last());
}

TEST_F(ConnectionDiskTest, AClientThatLeavesBeforeItsGrammarIsCompiledToo) {
  const std::string session = MakeSession();
  HeldThread large(grammars_, kSmallBodyBytes + 1), small(grammars_, 0);
  const size_t before = engine_.writes.count();
  SendGenerate(session);
  ASSERT_TRUE(Comes([&] { return grammars_.num_waiting() == 1; }));
  HangUp();
  large.Release();
  small.Release();
  ASSERT_TRUE(Comes([&] { return engine_.writes.count() > before; }));
  EXPECT_EQ(engine_.compiles.count(), 0u);
  for (const std::thread::id other : {server_.get_id(), large.id, small.id}) {
    EXPECT_NE(engine_.writes.last(), other);
  }
}

// To sort the prompts that stay takes long where there are many.
TEST_F(ConnectionDiskTest, AForgetIsBegunWhereItWasPrepared) {
  const std::string session = MakeSession();
  Send("DELETE", session);
  const auto [status, body] = Receive();
  EXPECT_EQ(status, 200) << body;
  ASSERT_GE(engine_.forgets.count(), 1u);
  EXPECT_NE(engine_.forgets.last(), server_.get_id());
}

TEST_F(ConnectionDiskTest, AForgetIsDoneThoughItsClientLeaves) {
  const std::string session = MakeSession();
  std::promise<void> prepares, left;
  std::atomic<bool> is_first{true};
  engine_.on_plan = [&] {
    if (!is_first.exchange(false)) return;
    prepares.set_value();
    left.get_future().wait();
  };
  Send("DELETE", session);
  prepares.get_future().wait();
  HangUp();
  left.set_value();
  EXPECT_TRUE(Comes([&] { return engine_.forgets.count() > 0; }));
}

TEST_F(ConnectionDiskTest, ToolsThatMustBeCalledAreALargeText) {
  std::string properties;
  for (int i = 0; properties.size() <= kSmallBodyBytes; ++i) {
    properties += (i ? ",\"" : "\"") + std::to_string(i) + R"(":{"type":"string"})";
  }
  HeldThread large(grammars_, kSmallBodyBytes + 1);
  Send("POST", "/v1/chat/completions",
       R"({"messages":[{"role":"user","content":"hi"}],"tool_choice":"required","tools":[)"
       R"({"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{)" +
           properties + "}}}}]}");
  ASSERT_TRUE(Comes([&] { return engine_.compiles.count() == 1 || grammars_.num_waiting() == 1; }));
  EXPECT_EQ(engine_.compiles.count(), 0u);
  large.Release();
  ASSERT_TRUE(Comes([&] { return engine_.compiles.count() == 1; }));
  EXPECT_EQ(engine_.compiles.last(), large.id);
}

}  // namespace
}  // namespace kvasir
