// ServiceNotify: tells the service manager (systemd) what this process does, as sd_notify does.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <chrono>
#include <optional>
#include <string_view>

namespace kvasir {

// Reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID once, when it is made. Thread-safe.
class ServiceNotify {
 public:
  ServiceNotify();

  // Tells whether a manager listens: NOTIFY_SOCKET is a path, or @NAME in the abstract name space.
  bool is_on() const { return length_ > 0; }
  // Returns the time within which the manager wants WATCHDOG=1 again; absent: it wants none.
  std::optional<std::chrono::microseconds> watchdog() const { return watchdog_; }
  // Sends lines such as "READY=1". Waits at most 100 ms for a manager that is slow; warns of lines
  // that were not sent. Does nothing where no manager listens.
  void Send(std::string_view lines) const noexcept;

 private:
  sockaddr_un address_{};
  socklen_t length_ = 0;  // of address_; 0: no manager listens
  std::optional<std::chrono::microseconds> watchdog_;
};

}  // namespace kvasir
