#include "server/shutdown.h"

#include <boost/asio/post.hpp>
#include <boost/system/error_code.hpp>
#include <chrono>

#include "base/clock.h"
#include "base/log.h"
#include "base/until_done.h"

namespace kvasir {
namespace {

constexpr uint64_t kSameSignalNs = 500'000'000;  // two of a kind within it are one
constexpr uint64_t kStopS = 1;                   // for the server to stop after a second signal
constexpr uint64_t kFlushNs = 5'000'000'000;     // for clients to read their last bytes

}  // namespace

void Shutdown::OnSignal(int signal) {
  const uint64_t now_ns = MonotonicNs();
  // `timeout` sends its signal to the process and to its group: that is one.
  if (signal == seen_.last && now_ns - seen_.last_ns < kSameSignalNs) return;
  seen_ = {.count = seen_.count + 1, .last = signal, .last_ns = now_ns};
  if (seen_.count > kMaxDrains) return;
  parts_.service.EndReadiness();
  notify_.Send("STOPPING=1");
  Log(LogLevel::kInfo,
      seen_.count == 1 ? "finishing running requests; a second signal stops at once" : "stopping");
  if (seen_.count > 1) {
    Drain();
    const auto& on_overdue = parts_.options.on_overdue;
    if (on_overdue) After(kStopS, on_overdue);  // such as by a long step
    return;
  }
  After(parts_.options.drain_delay_s, [this] { Drain(); });
}

// Lets what runs go on for a time at the first call; cancels it at the second.
void Shutdown::Drain() {
  if (num_drains_ == kMaxDrains) return;
  parts_.service.BeginDrain();
  drains_told_.release();
  if (++num_drains_ == 1 && seen_.count > 1) {  // a second signal came during the delay
    ++num_drains_;
    drains_told_.release();
  }
  if (num_drains_ > 1 || parts_.options.drain_timeout_s == 0) return;
  After(parts_.options.drain_timeout_s, [this] {
    Log(LogLevel::kWarning, "what still runs is cancelled: --drain-timeout-s has passed");
    Drain();
  });
}

// Calls `then` after so many seconds, and not what the last call was given.
void Shutdown::After(uint64_t seconds, std::function<void()> then) {
  UntilDone([&] {
    wait_.expires_after(std::chrono::seconds(seconds));
    wait_.async_wait([then](boost::system::error_code ec) {
      if (!ec) then();
    });
  });
}

void Shutdown::DrainWhenTold() noexcept {
  drains_told_.acquire();
  if (io_.stopped()) return;
  parts_.service.engine().Drain();
  UntilDone([this] { boost::asio::post(strand_, [this] { Flush(); }); });
}

// Waits for connections that still write; all generations have had their last event.
void Shutdown::Flush() {
  if (!acceptor_.is_open()) return;
  acceptor_.Close();
  give_up_ns_ = MonotonicNs() + kFlushNs;
  AwaitFlush();
}

void Shutdown::AwaitFlush() {
  parts_.connections.FinishAll();
  if (parts_.connections.size() == 0 || MonotonicNs() > give_up_ns_) return io_.stop();
  UntilDone([this] {
    flush_.expires_after(std::chrono::milliseconds(10));
    flush_.async_wait([this](boost::system::error_code ec) {
      if (!ec) AwaitFlush();
    });
  });
}

}  // namespace kvasir
