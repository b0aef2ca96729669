#include "http/event_loop.h"

#include <gtest/gtest.h>

#include <boost/asio/post.hpp>
#include <csignal>

namespace kvasir {
namespace {

TEST(EventLoop, OneThatWorksPassesAndIsUsedAfterwards) {
  boost::asio::io_context io{2};
  ASSERT_TRUE(CheckEventLoop(io));
  io.restart();
  bool ran = false;
  boost::asio::post(io, [&ran] { ran = true; });
  io.run();
  EXPECT_TRUE(ran);
}

TEST(EventLoop, TheProbesSignalIsGivenBack) {
  boost::asio::io_context io{2};
  ASSERT_TRUE(CheckEventLoop(io));
  struct sigaction action = {};
  ASSERT_EQ(sigaction(SIGRTMIN + 4, nullptr, &action), 0);
  EXPECT_EQ(action.sa_handler, SIG_DFL);
}

}  // namespace
}  // namespace kvasir
