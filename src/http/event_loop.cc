#include "http/event_loop.h"

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <csignal>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "base/start_thread.h"
#include "base/until_done.h"

namespace kvasir {
namespace {

namespace asio = boost::asio;
using ErrorCode = boost::system::error_code;
using Ran =
    std::shared_ptr<std::atomic<bool>>;  // shared, so that a late handler can still write it

constexpr auto kMoment = std::chrono::milliseconds(1);
constexpr int kProbe = 4;  // added to SIGRTMIN: a signal that no other code uses

// Tells whether the loop soon runs the handler that `begin` prepares, in one of a few tries; false
// also when `begin` fails. Several tries, because the machine may be busy, and a loop that misses
// an event finds it at its next timeout.
bool RunsSoon(asio::io_context& io, const std::function<bool(const Ran&)>& begin) {
  constexpr auto kTimeout = std::chrono::milliseconds(500), kSoon = std::chrono::milliseconds(400);
  for (int i = 0; i < 3; ++i) {
    const Ran ran = std::make_shared<std::atomic<bool>>(false);
    const uint64_t start_ns = MonotonicNs();
    const auto waited = [start_ns] { return std::chrono::nanoseconds(MonotonicNs() - start_ns); };
    if (!begin(ran)) return false;
    while (!*ran && waited() < kTimeout) io.run_one_for(kTimeout);
    if (*ran && waited() < kSoon) return true;
  }
  return false;
}

}  // namespace

Status CheckEventLoop(asio::io_context& io) {
  const auto work = asio::make_work_guard(io);
  asio::steady_timer timer(io);
  const bool fires = RunsSoon(io, [&](const Ran& ran) {
    timer.expires_after(kMoment);
    timer.async_wait([ran](ErrorCode) { *ran = true; });
    return true;
  });
  asio::signal_set signals(io, SIGRTMIN + kProbe);
  const bool takes_signals = RunsSoon(io, [&](const Ran& ran) {
    signals.async_wait([ran](ErrorCode, int) { *ran = true; });
    return std::raise(SIGRTMIN + kProbe) == 0;
  });
  Status started;
  std::vector<std::thread> others;
  const bool wakes = RunsSoon(io, [&](const Ran& ran) {
    Result<std::thread> other = StartThread("server", [&io, ran] {
      std::this_thread::sleep_for(kMoment);  // until the loop sleeps
      UntilDone([&] { asio::post(io, [ran] { *ran = true; }); });
    });
    if (!other) {
      started = tl::unexpected(std::move(other).error());
      return false;
    }
    others.push_back(*std::move(other));
    return true;
  });
  for (std::thread& other : others) other.join();
  KV_TRY(started);
  if (fires && takes_signals && wakes) return {};
  return Fail(Code::kIoError,
              "server: the event loop does not wake: the system refused to watch a descriptor (is "
              "/proc/sys/fs/epoll/max_user_watches reached?)");
}

}  // namespace kvasir
