// UntilDone: what must go on although the system refuses memory.
#pragma once

#include <chrono>
#include <thread>

namespace kvasir {

// Runs `action` until it does not throw, a millisecond apart. For what has nobody to tell that it
// failed.
template <typename Action>
void UntilDone(Action&& action) noexcept {
  for (;;) {
    try {
      return action();
    } catch (...) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

}  // namespace kvasir
