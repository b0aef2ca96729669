#include "base/service_notify.h"

#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "base/descriptor.h"
#include "base/log.h"
#include "base/sizes.h"

namespace kvasir {
namespace {

std::string_view VariableText(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

ServiceNotify::ServiceNotify() {
  const std::string_view path = VariableText("NOTIFY_SOCKET");
  if (path.size() < 2 || (path[0] != '/' && path[0] != '@')) return;
  if (path.size() >= sizeof(address_.sun_path)) {
    Log(LogLevel::kWarning, "NOTIFY_SOCKET is too long, so the service manager gets no messages");
    return;
  }
  address_.sun_family = AF_UNIX;
  std::memcpy(address_.sun_path, path.data(), path.size());
  if (path[0] == '@') address_.sun_path[0] = '\0';
  // A path ends with its zero; an abstract name has none.
  length_ = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() +
                                   (path[0] == '/' ? 1 : 0));
  const std::optional<uint64_t> pid = ParseUint(VariableText("WATCHDOG_PID"));
  const std::optional<uint64_t> us = ParseUint(VariableText("WATCHDOG_USEC"));
  constexpr uint64_t kMaxUs = uint64_t{1} << 50;
  if (!us || *us == 0 || *us > kMaxUs) return;
  if (pid && *pid != static_cast<uint64_t>(getpid())) return;  // meant for another process
  watchdog_ = std::chrono::microseconds(*us);
}

void ServiceNotify::Send(std::string_view lines) const noexcept {
  if (!is_on()) return;
  const Descriptor to(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const timeval limit{.tv_sec = 0, .tv_usec = 100'000};
  if (to) setsockopt(to.fd(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  const auto* address = reinterpret_cast<const sockaddr*>(&address_);
  if (to && sendto(to.fd(), lines.data(), lines.size(), MSG_NOSIGNAL, address, length_) >= 0) {
    return;
  }
  Log(LogLevel::kWarning, "a message to the service manager failed",
      LogField("lines", lines.substr(0, lines.find('\n'))), LogField("why", std::strerror(errno)));
}

}  // namespace kvasir
