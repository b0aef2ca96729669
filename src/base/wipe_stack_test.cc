#include "base/wipe_stack.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace kvasir {
namespace {

constexpr size_t kSecretBytes = 32 << 10;

// Fills a frame with 0xab, and says where.
[[gnu::noinline]] void LeaveSecret(uintptr_t* at) {
  volatile uint8_t secret[kSecretBytes];
  for (volatile uint8_t& byte : secret) byte = 0xab;
  *at = reinterpret_cast<uintptr_t>(&secret[0]);
}

// Counts the bytes of a frame that has returned.
[[gnu::noinline, gnu::no_sanitize_address]] size_t CountSecret(uintptr_t at) {
  const auto* const bytes = reinterpret_cast<const volatile uint8_t*>(at);
  size_t found = 0;
  for (size_t i = 0; i < kSecretBytes; ++i) found += bytes[i] == 0xab ? 1 : 0;
  return found;
}

#ifndef KVASIR_SANITIZED  // a sanitizer has frames elsewhere
TEST(WipeStack, NothingIsLeftOfACallThatHasReturned) {
  uintptr_t at = 0;
  LeaveSecret(&at);
  EXPECT_GT(CountSecret(at), kSecretBytes / 2);
  WipeUnusedStack();
  EXPECT_LE(CountSecret(at), 64u);  // in gaps of its frame
}
#endif

TEST(WipeStack, ASmallStackIsNotLeft) {
  pthread_attr_t about;
  ASSERT_EQ(pthread_attr_init(&about), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&about, std::max<size_t>(PTHREAD_STACK_MIN, 48 << 10)), 0);
  pthread_t thread;
  const auto body = [](void*) -> void* {
    WipeUnusedStack();
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, &about, body, nullptr), 0);
  EXPECT_EQ(pthread_join(thread, nullptr), 0);
  pthread_attr_destroy(&about);
}

}  // namespace
}  // namespace kvasir
