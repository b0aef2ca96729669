#include "server/shutdown.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <csignal>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/environment_for_test.h"
#include "base/log.h"
#include "base/notify_socket_for_test.h"
#include "server/fake_engine_for_test.h"

namespace kvasir {
namespace {

namespace asio = boost::asio;

// Its drains end when there have been as many as `needed`.
class DrainedEngine final : public FakeEngine {
 public:
  DrainedEngine() : FakeEngine(nullptr, nullptr) {}
  void Drain() override {
    num_drains.fetch_add(1);
    num_drains.notify_all();
    for (int seen = num_drains; seen < needed; seen = num_drains) num_drains.wait(seen);
  }
  void EndAll() {
    needed = 0;
    num_drains.fetch_add(1);
    num_drains.notify_all();
  }
  std::atomic<int> num_drains{0}, needed{1};
};

// A connection that has read its last bytes when it was asked three times to finish.
class LastReader final : public ConnectionHandle {
 public:
  LastReader(asio::io_context& io, ConnectionSet& set) : io_(io), set_(set) {}
  void Finish() override {
    if (++num_asked == 3) asio::post(io_, [this] { set_.Remove(this); });
  }
  void CloseForRoom() override {}
  int num_asked = 0;

 private:
  asio::io_context& io_;
  ConnectionSet& set_;
};

// A server that listens, with the threads that drain it; the test's thread runs its strand.
class ShutdownTest : public testing::Test {
 protected:
  ShutdownTest() { SetLogLevel(LogLevel::kError); }
  ~ShutdownTest() override {
    io_.stop();
    engine_.EndAll();
    if (shutdown_) shutdown_->EndWaiting();
    for (std::thread& thread : threads_) thread.join();
  }

  void Make(uint64_t delay_s, uint64_t timeout_s) {
    options_.hosts = {"127.0.0.1"};
    options_.port = 0;
    options_.drain_delay_s = delay_s;
    options_.drain_timeout_s = timeout_s;
    service_ = *Service::Make(options_, engine_);
    parts_ = std::make_unique<ConnectionParts>(
        ConnectionParts{*service_, options_, connections_, pool_, pool_, pool_});
    acceptor_ = std::make_unique<Acceptor>(io_, strand_, *parts_);
    ASSERT_TRUE(acceptor_->Listen());
    shutdown_ = std::make_unique<Shutdown>(io_, strand_, *parts_, *acceptor_, notify_);
    for (int i = 0; i < Shutdown::kMaxDrains; ++i) {
      threads_.emplace_back([this] { shutdown_->DrainWhenTold(); });
    }
  }
  // Runs handlers until this is true; false: it was not within ten seconds.
  bool RunUntil(const std::function<bool()>& is_true) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!is_true() && io_.run_one_until(end) > 0) {
    }
    return is_true();
  }
  bool RunUntilStopped() {
    return RunUntil([this] { return io_.stopped(); });
  }
  bool IsReady() { return AskService(*service_, RequestOf("GET", "/ready")).status == 200; }
  bool TakesRequests() {
    return !service_->CheckHead(RequestOf("POST", "/v1/completions"), /*body_bytes=*/5);
  }

  NotifySocket socket_{"@kvasir-shutdown." + std::to_string(getpid())};
  const Environment environment_{{"NOTIFY_SOCKET", socket_.name()}, {"WATCHDOG_USEC", nullptr}};
  const ServiceNotify notify_;
  DrainedEngine engine_;
  ServerOptions options_;
  MemoryQuota quota_{1 << 20};  // must outlive what io_ destroys
  asio::io_context io_;
  const Shutdown::Strand strand_ = asio::make_strand(io_);
  const asio::executor_work_guard<asio::io_context::executor_type> work_{io_.get_executor()};
  std::unique_ptr<Service> service_;
  ConnectionSet connections_{1 << 20, 1 << 20, 0};
  PreparePool pool_{quota_, quota_};
  std::unique_ptr<ConnectionParts> parts_;
  std::unique_ptr<Acceptor> acceptor_;
  std::unique_ptr<Shutdown> shutdown_;
  std::vector<std::thread> threads_;
};

TEST_F(ShutdownTest, ASignalEndsReadinessThenNewRequestsThenTheServer) {
  Make(/*delay_s=*/0, /*timeout_s=*/3600);
  EXPECT_TRUE(IsReady());
  EXPECT_FALSE(shutdown_->has_begun());
  shutdown_->OnSignal(SIGTERM);
  EXPECT_TRUE(shutdown_->has_begun());
  EXPECT_EQ(socket_.Next(1000), "STOPPING=1");
  EXPECT_FALSE(IsReady());
  EXPECT_TRUE(TakesRequests()) << "its delay is over when the strand runs";
  ASSERT_TRUE(RunUntilStopped());
  EXPECT_FALSE(TakesRequests());
  EXPECT_FALSE(acceptor_->is_open());
  EXPECT_EQ(engine_.num_drains.load(), 1);
  EXPECT_FALSE(shutdown_->has_second_signal());
}

TEST_F(ShutdownTest, TheSameSignalTwiceAtOnceIsOne) {
  Make(/*delay_s=*/3600, /*timeout_s=*/3600);
  const uint64_t before_ns = MonotonicNs();
  shutdown_->OnSignal(SIGTERM);
  shutdown_->OnSignal(SIGTERM);
  const bool is_one = !shutdown_->has_second_signal();
  EXPECT_TRUE(is_one || MonotonicNs() - before_ns >= 500'000'000);
  shutdown_->OnSignal(SIGINT);
  EXPECT_TRUE(shutdown_->has_second_signal());
}

TEST_F(ShutdownTest, ASecondSignalDuringTheDelayDrainsAndCancelsAtOnce) {
  Make(/*delay_s=*/3600, /*timeout_s=*/3600);
  engine_.needed = 2;  // the first drain waits for what the second one cancels
  shutdown_->OnSignal(SIGTERM);
  EXPECT_TRUE(TakesRequests());
  shutdown_->OnSignal(SIGINT);
  EXPECT_FALSE(TakesRequests());
  EXPECT_TRUE(RunUntilStopped());
  EXPECT_EQ(engine_.num_drains.load(), 2);
}

TEST_F(ShutdownTest, WhatStillRunsAfterTheTimeoutIsCancelled) {
  Make(/*delay_s=*/0, /*timeout_s=*/1);
  engine_.needed = 2;
  shutdown_->OnSignal(SIGTERM);
  EXPECT_TRUE(RunUntilStopped());
  EXPECT_EQ(engine_.num_drains.load(), 2);
  EXPECT_FALSE(shutdown_->has_second_signal());
}

TEST_F(ShutdownTest, SaysThatItIsOverdueWhereNoDrainEnds) {
  bool is_overdue = false;
  options_.on_overdue = [&] { is_overdue = true; };
  Make(/*delay_s=*/0, /*timeout_s=*/3600);
  engine_.needed = 3;
  shutdown_->OnSignal(SIGTERM);
  shutdown_->OnSignal(SIGINT);
  EXPECT_TRUE(RunUntil([&] { return is_overdue; }));
  EXPECT_FALSE(io_.stopped());
}

TEST_F(ShutdownTest, WaitsUntilClientsHaveReadTheirLastBytes) {
  Make(/*delay_s=*/0, /*timeout_s=*/3600);
  const auto reader = std::make_shared<LastReader>(io_, connections_);
  connections_.Add(reader);
  shutdown_->OnSignal(SIGTERM);
  EXPECT_TRUE(RunUntilStopped());
  EXPECT_GE(reader->num_asked, 3);
  EXPECT_EQ(connections_.size(), 0u);
}

}  // namespace
}  // namespace kvasir
