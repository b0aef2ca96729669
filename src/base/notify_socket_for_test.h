// NotifySocket: what a service manager listens on, for tests.
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <optional>
#include <string>

#include "base/check.h"
#include "base/descriptor.h"

namespace kvasir {

class NotifySocket {
 public:
  // `name`: a path, or @NAME in the abstract name space.
  explicit NotifySocket(const std::string& name) : name_(name) {
    sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
    KV_CHECK(name.size() < sizeof(address.sun_path));
    std::memcpy(address.sun_path, name.data(), name.size());
    if (name[0] == '@') address.sun_path[0] = '\0';
    const size_t length =
        offsetof(sockaddr_un, sun_path) + name.size() + (name[0] == '@' ? size_t{0} : size_t{1});
    KV_CHECK(bind(socket_.fd(), reinterpret_cast<const sockaddr*>(&address),
                  static_cast<socklen_t>(length)) == 0);
  }
  ~NotifySocket() {
    if (name_[0] == '/') unlink(name_.c_str());
  }
  NotifySocket(const NotifySocket&) = delete;
  NotifySocket& operator=(const NotifySocket&) = delete;

  const char* name() const { return name_.c_str(); }
  // Returns the next message; absent: none came in `wait_ms`.
  std::optional<std::string> Next(int wait_ms) {
    pollfd one{.fd = socket_.fd(), .events = POLLIN, .revents = 0};
    if (poll(&one, 1, wait_ms) != 1) return std::nullopt;
    char bytes[4096];
    const ssize_t count = recv(socket_.fd(), bytes, sizeof(bytes), 0);
    return count < 0 ? std::nullopt : std::optional(std::string(bytes, static_cast<size_t>(count)));
  }

 private:
  const std::string name_;
  const Descriptor socket_{socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)};
};

}  // namespace kvasir
