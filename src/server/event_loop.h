// What a server's event loop must do whatever the system refuses.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <thread>

#include "kvasir/status.h"

namespace kvasir {

// Whether `io` fires timers, takes signals and wakes for what another thread posts: Asio does not
// say when the system refused to watch one of the descriptors for that. kIoError: it does not;
// kExhausted: no thread to try it with. Takes milliseconds. REQUIRES: nothing is in `io` yet. It
// must be restarted afterwards.
Status CheckEventLoop(boost::asio::io_context& io);

// Does what the loop must go on with, again and again while memory for it is refused.
template <typename Action>
void UntilDone(Action action) noexcept {
  for (;;) {
    try {
      return action();
    } catch (...) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

}  // namespace kvasir
