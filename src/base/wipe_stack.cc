#include "base/wipe_stack.h"

#include <alloca.h>
#include <openssl/crypto.h>
#include <pthread.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace kvasir {
namespace {

constexpr size_t kMostBytes = size_t{64} << 10;
constexpr size_t kOwnFrameBytes = size_t{16} << 10;  // for the frames of the call itself

// Returns the lowest address of this thread's stack; 0 where the system does not say it.
uintptr_t FindStackEnd() {
  pthread_attr_t about;
  if (pthread_getattr_np(pthread_self(), &about) != 0) return 0;
  void* low = nullptr;
  size_t size = 0;
  if (pthread_attr_getstack(&about, &low, &size) != 0) low = nullptr;
  pthread_attr_destroy(&about);
  return reinterpret_cast<uintptr_t>(low);
}

}  // namespace

// Is not inlined, so that its frame begins where those of earlier calls did.
[[gnu::noinline]] void WipeUnusedStack() {
  static thread_local const uintptr_t end = FindStackEnd();
  const auto here = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
  if (end == 0 || here < end + kOwnFrameBytes) return;
  const size_t num_bytes = std::min<size_t>(kMostBytes, here - end - kOwnFrameBytes);
  OPENSSL_cleanse(alloca(num_bytes), num_bytes);
}

}  // namespace kvasir
