// CheckEventLoop: finds out whether the system lets an event loop work.
#pragma once

#include <boost/asio/io_context.hpp>

#include "kvasir/status.h"

namespace kvasir {

// Tells whether `io` fires timers, takes signals and wakes when another thread posts. Asio does not
// report when the system refuses to watch one of the descriptors for that. kIoError when one of
// them fails; kExhausted when there is no thread for the test. Takes milliseconds. REQUIRES: `io`
// has no work yet. `io` must be restarted afterwards.
Status CheckEventLoop(boost::asio::io_context& io);

}  // namespace kvasir
