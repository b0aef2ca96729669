#include "base/service_notify.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string>

#include "base/environment_for_test.h"
#include "base/notify_socket_for_test.h"

namespace kvasir {
namespace {

// Runs `body`, which logs, in a child process: the log looks at standard error only once in each,
// and tests of the log are in this one.
void InAnotherProcess(const std::function<void()>& body) {
  const auto run = [&] {
    body();
    std::_Exit(testing::Test::HasFailure() ? 1 : 0);
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(0), "");
}

std::string SocketPath(const char* begin, const char* name) {
  return std::string(begin) + "kvasir-" + name + "." + std::to_string(getpid());
}

TEST(ServiceNotify, SendsToAPathAndToAnAbstractName) {
  for (const std::string& name : {SocketPath("/tmp/", "notify"), SocketPath("@", "notify")}) {
    NotifySocket socket(name);
    const Environment environment{{"NOTIFY_SOCKET", socket.name()}, {"WATCHDOG_USEC", nullptr}};
    const ServiceNotify notify;
    EXPECT_TRUE(notify.is_on());
    EXPECT_FALSE(notify.watchdog());
    notify.Send("READY=1\nSTATUS=serving");
    EXPECT_EQ(socket.Next(1000), "READY=1\nSTATUS=serving") << name;
  }
}

TEST(ServiceNotify, IsOffWithoutASocket) {
  const std::string long_path = "/" + std::string(200, 'x');
  for (const char* name :
       {static_cast<const char*>(nullptr), "", "/", "vsock:2:1", long_path.c_str()}) {
    InAnotherProcess([&] {
      const Environment environment{{"NOTIFY_SOCKET", name}, {"WATCHDOG_USEC", "1000"}};
      const ServiceNotify notify;
      EXPECT_FALSE(notify.is_on());
      EXPECT_FALSE(notify.watchdog());
      notify.Send("READY=1");
    });
  }
}

TEST(ServiceNotify, AManagerThatIsGoneFailsNothing) {
  const std::string name = SocketPath("/tmp/", "gone");
  InAnotherProcess([&] {
    const Environment environment{{"NOTIFY_SOCKET", name.c_str()}};
    const ServiceNotify notify;
    EXPECT_TRUE(notify.is_on());
    notify.Send("READY=1");
  });
}

TEST(ServiceNotify, TheWatchdogIsOfThisProcess) {
  const std::string name = SocketPath("@", "watchdog"), self = std::to_string(getpid());
  const auto watchdog = [&](const char* us, const char* pid) {
    const Environment environment{
        {"NOTIFY_SOCKET", name.c_str()}, {"WATCHDOG_USEC", us}, {"WATCHDOG_PID", pid}};
    return ServiceNotify().watchdog();
  };
  using std::chrono::microseconds;
  EXPECT_EQ(watchdog("180000000", nullptr), microseconds(180'000'000));
  EXPECT_EQ(watchdog("1", self.c_str()), microseconds(1));
  EXPECT_EQ(watchdog("180000000", "1"), std::nullopt);
  for (const char* wrong : {"0", "x", "-1", "18446744073709551615", ""}) {
    EXPECT_EQ(watchdog(wrong, self.c_str()), std::nullopt) << wrong;
  }
}

}  // namespace
}  // namespace kvasir
