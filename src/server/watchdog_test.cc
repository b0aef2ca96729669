#include "server/watchdog.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <boost/asio/post.hpp>
#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/environment_for_test.h"
#include "base/notify_socket_for_test.h"
#include "server/fake_engine_for_test.h"

namespace kvasir {
namespace {

namespace asio = boost::asio;

// Its thread answers when the test says so.
class SlowEngine final : public FakeEngine {
 public:
  SlowEngine() : FakeEngine(nullptr, nullptr) {}
  void ListSequences(std::optional<std::string> tenant, SequencesSink done) override {
    EXPECT_EQ(tenant, "");
    asked.push_back(std::move(done));
  }
  void Answer() { std::exchange(asked, {}).at(0)({}); }
  std::vector<SequencesSink> asked;
};

class WatchdogTest : public testing::Test {
 protected:
  void Start() {
    watchdog_.emplace(notify_, engine_, strand_);
    asio::post(strand_, [this] { watchdog_->Start(); });
  }
  // Runs handlers until the engine is asked, or for `most`.
  bool RunUntilAsked(std::chrono::milliseconds most) {
    const auto end = std::chrono::steady_clock::now() + most;
    io_.restart();
    while (engine_.asked.empty() && std::chrono::steady_clock::now() < end) {
      if (io_.run_one_until(end) == 0) break;
    }
    return !engine_.asked.empty();
  }
  void RunAll() {
    io_.restart();
    io_.poll();
  }

  NotifySocket socket_{"@kvasir-watchdog." + std::to_string(getpid())};
  const Environment environment_{
      {"NOTIFY_SOCKET", socket_.name()}, {"WATCHDOG_USEC", "40000"}, {"WATCHDOG_PID", nullptr}};
  const ServiceNotify notify_;
  SlowEngine engine_;
  asio::io_context io_;
  Watchdog::Strand strand_ = asio::make_strand(io_);
  std::optional<Watchdog> watchdog_;
};

TEST_F(WatchdogTest, SendsEachTimeTheEngineHasAnswered) {
  const auto began = std::chrono::steady_clock::now();
  Start();
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(RunUntilAsked(std::chrono::seconds(10)));
    EXPECT_EQ(socket_.Next(0), std::nullopt);
    engine_.Answer();
    RunAll();
    EXPECT_EQ(socket_.Next(1000), "WATCHDOG=1");
  }
  EXPECT_GE(std::chrono::steady_clock::now() - began, std::chrono::milliseconds(60));
}

TEST_F(WatchdogTest, IsSilentWhileTheEngineDoesNotAnswer) {
  Start();
  ASSERT_TRUE(RunUntilAsked(std::chrono::seconds(10)));
  io_.restart();
  io_.run_for(std::chrono::milliseconds(100));
  EXPECT_EQ(engine_.asked.size(), 1u);
  EXPECT_EQ(socket_.Next(0), std::nullopt);
}

TEST_F(WatchdogTest, AnAnswerAfterItsEndDoesNothing) {
  Start();
  ASSERT_TRUE(RunUntilAsked(std::chrono::seconds(10)));
  watchdog_.reset();
  engine_.Answer();
  RunAll();
  EXPECT_EQ(socket_.Next(0), std::nullopt);
}

TEST(WatchdogOff, AsksNothingWhereNoneIsWanted) {
  const Environment environment{{"NOTIFY_SOCKET", nullptr}, {"WATCHDOG_USEC", "10"}};
  const ServiceNotify notify;
  SlowEngine engine;
  asio::io_context io;
  Watchdog watchdog(notify, engine, asio::make_strand(io));
  watchdog.Start();
  io.run();
  EXPECT_TRUE(engine.asked.empty());
}

}  // namespace
}  // namespace kvasir
