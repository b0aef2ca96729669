// UntilDone: repeats an action that must succeed even when the system refuses memory.
#pragma once

#include <chrono>
#include <thread>

namespace kvasir {

// Runs `action` every millisecond until it does not throw. For actions that cannot report a
// failure.
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
