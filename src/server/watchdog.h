// Watchdog: tells the service manager again and again that the server lives.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <memory>

#include "base/mutex.h"
#include "base/service_notify.h"
#include "kvasir/engine.h"

namespace kvasir {

// Sends WATCHDOG=1 each time half of what the manager allows has passed. Each one goes from the
// strand through the engine's thread and back, so a server of which either hangs sends no more; a
// step may take as long as the other half. Does nothing where the manager asks for none. Its
// handlers run on the strand.
class Watchdog {
 public:
  using Strand = boost::asio::strand<boost::asio::io_context::executor_type>;

  // `notify` and `engine` must outlive it; the strand's io_context too.
  Watchdog(const ServiceNotify& notify, Engine& engine, const Strand& strand);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  void Start();  // call it once, on the strand

 private:
  // Ends what the engine's thread may still do for a watchdog that is gone.
  struct Guard {
    Mutex mutex;
    bool is_over KV_GUARDED_BY(mutex) = false;
  };

  void Await();
  void AskEngine();
  void Send();

  const ServiceNotify& notify_;
  Engine& engine_;
  const Strand strand_;
  boost::asio::steady_timer timer_;
  const std::shared_ptr<Guard> guard_ = std::make_shared<Guard>();
};

}  // namespace kvasir
