// What a server's event loop must do whatever the system refuses.
#pragma once

#include <boost/asio/io_context.hpp>

#include "kvasir/status.h"

namespace kvasir {

// Whether `io` fires timers, takes signals and wakes for what another thread posts: Asio does not
// say when the system refused to watch one of the descriptors for that. kIoError: it does not;
// kExhausted: no thread to try it with. Takes milliseconds. REQUIRES: nothing is in `io` yet. It
// must be restarted afterwards.
Status CheckEventLoop(boost::asio::io_context& io);

}  // namespace kvasir
