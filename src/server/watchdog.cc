#include "server/watchdog.h"

#include <boost/asio/post.hpp>
#include <boost/system/error_code.hpp>
#include <vector>

#include "base/until_done.h"

namespace kvasir {

Watchdog::Watchdog(const ServiceNotify& notify, Engine& engine, const Strand& strand)
    : notify_(notify), engine_(engine), strand_(strand), timer_(strand) {}

Watchdog::~Watchdog() {
  const MutexLock lock(guard_->mutex);
  guard_->is_over = true;
}

void Watchdog::Start() {
  if (notify_.watchdog()) Await();
}

void Watchdog::Await() {
  UntilDone([this] {
    timer_.expires_after(*notify_.watchdog() / 2);
    timer_.async_wait([this](boost::system::error_code ec) {
      if (!ec) AskEngine();
    });
  });
}

// Asks the engine's thread, which answers between two steps; no tenant has an empty name, so the
// list is empty.
void Watchdog::AskEngine() {
  UntilDone([this] {
    engine_.ListSequences("", [this, guard = guard_](const std::vector<SequenceState>&) {
      const MutexLock lock(guard->mutex);
      if (guard->is_over) return;
      UntilDone([this] { boost::asio::post(strand_, [this] { Send(); }); });
    });
  });
}

void Watchdog::Send() {
  notify_.Send("WATCHDOG=1");
  Await();
}

}  // namespace kvasir
