#include "remote/host_lookup.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>

#include "base/result.h"

namespace kvasir {
namespace {

RemoteAddress HostNamed(const char* name) { return {.host = name, .port = 7, .user = {}}; }

TEST(HostLookup, NumbersNeedNoLookup) {
  HostLookup lookup([](const RemoteAddress&) -> Result<SocketAddresses> {
    ADD_FAILURE() << "the system was asked";
    return SocketAddresses();
  });
  for (const char* host : {"127.0.0.1", "::1"}) {
    const auto found = lookup.Ask(HostNamed(host), [] { return false; });
    ASSERT_TRUE(found) << host;
    EXPECT_EQ(found->size(), 1u) << host;
  }
}

TEST(HostLookup, OneThatHangsIsLeftAndAskedForAgain) {
  std::promise<void> release;
  std::atomic<int> calls = 0;
  const auto resolver = [&, gate = release.get_future().share()](const RemoteAddress&) {
    ++calls;
    gate.wait();
    return Result<SocketAddresses>(SocketAddresses(3));
  };
  HostLookup lookup(resolver);
  for (int i = 0; i < 2; ++i) {
    int left = 3;
    const auto found = lookup.Ask(HostNamed("store.example"), [&] { return --left > 0; });
    ASSERT_FALSE(found);
    EXPECT_EQ(found.error().code, Code::kCancelled);
  }
  release.set_value();
  const auto found = lookup.Ask(HostNamed("store.example"), [] { return true; });
  ASSERT_TRUE(found);
  EXPECT_EQ(found->size(), 3u);
  EXPECT_EQ(calls, 1);
}

TEST(HostLookup, AnErrorIsForgotten) {
  int calls = 0;
  HostLookup lookup([&](const RemoteAddress& address) -> Result<SocketAddresses> {
    if (++calls == 1) return Fail(Code::kIoError, "no address of {}", address.host);
    return SocketAddresses(1);
  });
  const auto always = [] { return true; };
  EXPECT_EQ(lookup.Ask(HostNamed("store.example"), always).error().code, Code::kIoError);
  EXPECT_TRUE(lookup.Ask(HostNamed("store.example"), always));
}

TEST(HostLookup, TheSystemKnowsThisMachine) {
  const auto found = Resolve(HostNamed("localhost"));
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_FALSE(found->empty());
}

}  // namespace
}  // namespace kvasir
