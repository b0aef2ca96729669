// Shutdown: how a server ends after a signal.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <cstdint>
#include <functional>
#include <semaphore>

#include "base/service_notify.h"
#include "server/acceptor.h"
#include "server/exchange.h"

namespace kvasir {

// States: serving -> delayed (readiness has ended, requests are still taken) -> draining (what runs
// may go on, for a time) -> flushing (clients read their last bytes) -> stopped, as io_context is.
// A second signal cancels what runs. One strand, except what says otherwise.
class Shutdown {
 public:
  using Strand = boost::asio::strand<boost::asio::io_context::executor_type>;
  // One for each signal. Each needs a separate thread (DrainWhenTold).
  static constexpr int kMaxDrains = 2;

  // Keeps references: all must outlive it. `strand` is one of `io`.
  Shutdown(boost::asio::io_context& io, const Strand& strand, const ConnectionParts& parts,
           Acceptor& acceptor, const ServiceNotify& notify)
      : io_(io),
        strand_(strand),
        parts_(parts),
        acceptor_(acceptor),
        notify_(notify),
        wait_(strand),
        flush_(strand) {}

  void OnSignal(int signal);
  bool has_begun() const { return seen_.count > 0; }
  bool has_second_signal() const { return seen_.count > 1; }

  // Waits until it is time to drain the engine, and drains it, which blocks; returns without that
  // where the io_context has stopped. A second call cancels the requests that the first one waits
  // for. Any thread.
  void DrainWhenTold() noexcept;
  // Ends the waiting in DrainWhenTold. REQUIRES: the io_context has stopped. Any thread.
  void EndWaiting() { drains_told_.release(kMaxDrains); }

 private:
  // Signals that end the server.
  struct Signals {
    int count = 0, last = 0;
    uint64_t last_ns = 0;  // when the last one came
  };

  void Drain();
  void After(uint64_t seconds, std::function<void()> then);
  void Flush();
  void AwaitFlush();

  boost::asio::io_context& io_;
  const Strand strand_;
  const ConnectionParts& parts_;
  Acceptor& acceptor_;
  const ServiceNotify& notify_;
  boost::asio::steady_timer wait_, flush_;
  uint64_t give_up_ns_ = 0;  // on clients that do not read
  Signals seen_;
  int num_drains_ = 0;
  std::counting_semaphore<2 * kMaxDrains> drains_told_{0};
};

}  // namespace kvasir
