#include "observe/json_poster.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/descriptor.h"
#include "base/result.h"

namespace kvasir {
namespace {

constexpr size_t kMaxHeaderBytes = 64 << 10;

struct Endpoint {
  int family;
  std::vector<std::byte> address;
};

tl::unexpected<Error> SystemFault() { return Fail(Code::kIoError, "{}", std::strerror(errno)); }

// Returns the status of an HTTP/1.x answer; absent: the text has none.
std::optional<unsigned> StatusOf(std::string_view head) {
  constexpr std::string_view kVersion = "HTTP/1.";
  unsigned status = 0;
  if (!head.starts_with(kVersion) || head.size() < kVersion.size() + 5) return std::nullopt;
  const char* begin = head.data() + kVersion.size() + 2;  // after "0 " or "1 "
  if (std::from_chars(begin, begin + 3, status).ptr != begin + 3) return std::nullopt;
  return status;
}

}  // namespace

struct JsonPoster::Parts {
  std::vector<Endpoint> endpoints;
  std::string host, path, headers;
  Descriptor wake;  // readable once it is stopped
  std::atomic<bool> stopped{false};

  // Waits until the socket has `events`, Stop is called, or the time is over.
  Status Await(int fd, short events, uint64_t end_ns) const {
    while (!stopped) {
      const uint64_t now_ns = MonotonicNs();
      if (now_ns >= end_ns) return Fail(Code::kDeadlineExceeded, "no answer in time");
      pollfd fds[] = {{fd, events, 0}, {wake.fd(), POLLIN, 0}};
      const int ready = poll(fds, 2, static_cast<int>(CeilDiv(end_ns - now_ns, 1'000'000)));
      if (ready < 0 && errno != EINTR) return SystemFault();
      if (fds[0].revents != 0) return {};
    }
    return Fail(Code::kCancelled, "stopped");
  }

  Result<Descriptor> Connect(const Endpoint& to, uint64_t end_ns) const {
    Descriptor socket(::socket(to.family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!socket) return SystemFault();
    const auto* address = reinterpret_cast<const sockaddr*>(to.address.data());
    if (connect(socket.fd(), address, static_cast<socklen_t>(to.address.size())) == 0) {
      return socket;
    }
    if (errno != EINPROGRESS) return SystemFault();
    KV_TRY(Await(socket.fd(), POLLOUT, end_ns));
    int fault = 0;
    socklen_t size = sizeof(fault);
    if (getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &fault, &size) != 0) return SystemFault();
    if (fault != 0) return Fail(Code::kIoError, "{}", std::strerror(fault));
    return socket;
  }

  Status Send(int fd, std::string_view text, uint64_t end_ns) const {
    while (!text.empty()) {
      const ssize_t sent = send(fd, text.data(), text.size(), MSG_NOSIGNAL);
      if (sent >= 0) {
        text.remove_prefix(static_cast<size_t>(sent));
      } else if (errno == EAGAIN) {
        KV_TRY(Await(fd, POLLOUT, end_ns));
      } else if (errno != EINTR) {
        return SystemFault();
      }
    }
    return {};
  }

  // Receives the answer up to the end of its header.
  Result<std::string> ReceiveHead(int fd, uint64_t end_ns) const {
    std::string head;
    char buffer[4096];
    while (head.find("\r\n\r\n") == head.npos) {
      const ssize_t got = recv(fd, buffer, sizeof(buffer), 0);
      if (got > 0) {
        head.append(buffer, static_cast<size_t>(got));
        if (head.size() > kMaxHeaderBytes) return Fail(Code::kIoError, "the answer has no end");
      } else if (got == 0) {
        return Fail(Code::kIoError, "the connection was closed without an answer");
      } else if (errno == EAGAIN) {
        KV_TRY(Await(fd, POLLIN, end_ns));
      } else if (errno != EINTR) {
        return SystemFault();
      }
    }
    return head;
  }

  Status Post(const std::string& body, std::chrono::milliseconds timeout) const;
};

JsonPoster::JsonPoster(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
JsonPoster::~JsonPoster() = default;

Result<std::unique_ptr<JsonPoster>> JsonPoster::Make(const std::string& host,
                                                     const std::string& port,
                                                     const std::string& path,
                                                     const std::vector<TracePair>& headers) {
  auto parts = std::make_unique<Parts>();
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int fault = getaddrinfo(host.c_str(), port.c_str(), &hints, &found); fault != 0) {
    return Fail(Code::kNotFound, "cannot resolve '{}': {}", host, gai_strerror(fault));
  }
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    const auto* bytes = reinterpret_cast<const std::byte*>(each->ai_addr);
    parts->endpoints.push_back({each->ai_family, {bytes, bytes + each->ai_addrlen}});
  }
  freeaddrinfo(found);
  const bool is_v6 = host.find(':') != std::string::npos;
  parts->host = (is_v6 ? "[" + host + "]" : host) + ":" + port;
  parts->path = path;
  for (const auto& [name, value] : headers) parts->headers += name + ": " + value + "\r\n";
  parts->wake = Descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!parts->wake) return SystemFault();
  return std::unique_ptr<JsonPoster>(new JsonPoster(std::move(parts)));
}

Status JsonPoster::Parts::Post(const std::string& body, std::chrono::milliseconds timeout) const {
  const uint64_t end_ns =  // of all steps together
      MonotonicNs() + static_cast<uint64_t>(std::chrono::nanoseconds(timeout).count());
  const std::string head = fmt::format(
      "POST {} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n"
      "{}Connection: close\r\n\r\n",
      path, host, body.size(), headers);
  Result<Descriptor> socket = Fail(Code::kIoError, "no address");
  for (const Endpoint& endpoint : endpoints) {
    socket = Connect(endpoint, end_ns);
    if (socket) break;
  }
  if (!socket) return tl::unexpected(socket.error());
  KV_TRY(Send(socket->fd(), head, end_ns));
  KV_TRY(Send(socket->fd(), body, end_ns));
  KV_ASSIGN(const std::string answer, ReceiveHead(socket->fd(), end_ns));
  const std::optional<unsigned> status = StatusOf(answer);
  if (!status) return Fail(Code::kIoError, "the collector's answer is not HTTP");
  if (*status / 100 != 2) return Fail(Code::kIoError, "the collector answered {}", *status);
  return {};
}

Status JsonPoster::Post(const std::string& body, std::chrono::milliseconds timeout) {
  const Status posted = parts_->Post(body, timeout);
  if (posted) return {};
  return Fail(posted.error().code, "http://{}{}: {}", parts_->host, parts_->path,
              posted.error().message);
}

void JsonPoster::Stop() {
  parts_->stopped = true;
  const uint64_t one = 1;
  // The counter of a new eventfd has room for it.
  [[maybe_unused]] const ssize_t written = write(parts_->wake.fd(), &one, sizeof(one));
}

}  // namespace kvasir
