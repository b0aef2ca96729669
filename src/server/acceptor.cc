#include "server/acceptor.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstring>
#include <exception>
#include <utility>

#include "access/browser_rules.h"
#include "base/clock.h"
#include "base/descriptor.h"
#include "base/log.h"
#include "base/result.h"
#include "base/until_done.h"
#include "server/connection.h"

namespace kvasir {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using ErrorCode = boost::system::error_code;

constexpr int kAcceptsAtOnce = 64;      // then other handlers get their turn
constexpr size_t kMaxClosing = 64;      // closing connections that still hold memory
constexpr size_t kClosedForFiles = 16;  // at once, when the system has no descriptor left
constexpr auto kRetryAccept = std::chrono::milliseconds(20);  // while all connections are busy
constexpr auto kAwaitClosing = std::chrono::milliseconds(1);

// Tells whether a connection waits to be accepted: room is made only for one that is there, because
// the one that is closed may be the newest, whose request has not arrived yet.
bool IsAnyWaiting(tcp::acceptor& at) {
  pollfd waiting{at.native_handle(), POLLIN, 0};
  return poll(&waiting, 1, 0) != 0;
}

}  // namespace

Status Acceptor::Listen() {
  uint16_t port = parts_.options.port;  // that which the system chose for the first, for all
  for (const std::string& host : parts_.options.hosts) {
    KV_ASSIGN(port, ListenAt(host, port));
  }
  return {};
}

bool Acceptor::IsLoopback() const {
  return std::ranges::all_of(listeners_, [](const auto& listener) {
    ErrorCode ec;
    return IsLoopbackHost(listener->acceptor.local_endpoint(ec).address().to_string());
  });
}

// Returns the port: the one that the system chose for port 0.
Result<uint16_t> Acceptor::ListenAt(const std::string& host, uint16_t port) {
  ErrorCode ec;
  tcp::resolver resolver(io_);
  const auto found = resolver.resolve(host, std::to_string(port),
                                      tcp::resolver::passive | tcp::resolver::numeric_service, ec);
  if (ec || found.empty()) {
    return FailField(Code::kInvalidArgument, "host",
                     "cannot resolve '{}': {}; give a name or an address without port and "
                     "brackets, such as 127.0.0.1 or ::1",
                     host, ec.message());
  }
  const tcp::endpoint endpoint = found.begin()->endpoint();
  tcp::acceptor& acceptor = listeners_.emplace_back(std::make_unique<Listener>(strand_))->acceptor;
  acceptor.open(endpoint.protocol(), ec);
  if (!ec) acceptor.set_option(tcp::acceptor::reuse_address(true), ec);
  // Beside 0.0.0.0, :: is IPv6 alone.
  const bool is_alone = parts_.options.hosts.size() == 1;
  if (!ec && endpoint.address().is_v6() && !is_alone) {
    acceptor.set_option(asio::ip::v6_only(true), ec);
  }
  if (!ec) acceptor.bind(endpoint, ec);
  if (!ec) acceptor.listen(asio::socket_base::max_listen_connections, ec);
  if (!ec) acceptor.non_blocking(true, ec);
  if (!ec) return acceptor.local_endpoint().port();
  return Fail(Code::kIoError,
              "cannot listen on {} port {}: {}; choose another with --host or "
              "--port",
              host, port, ec.message());
}

Status Acceptor::CheckFiles() const {
  constexpr int kLeast = 4;
  std::vector<std::unique_ptr<Descriptor>> files;
  for (int i = 0; i < kLeast; ++i) {
    files.push_back(
        std::make_unique<Descriptor>(dup(listeners_.front()->acceptor.native_handle())));
    if (!*files.back()) {
      return Fail(Code::kIoError,
                  "server: only {} more files can be opened, and connections need at least {}: {}; "
                  "raise the limit of open files (ulimit -n)",
                  i, kLeast, std::strerror(errno));
    }
  }
  return {};
}

std::string Acceptor::Lines() const {
  std::string text;
  for (const auto& listener : listeners_) {
    ErrorCode ec;
    const tcp::endpoint endpoint = listener->acceptor.local_endpoint(ec);
    const std::string address = endpoint.address().to_string();
    text +=
        fmt::format("listening on {}://{}:{}\n", parts_.options.tls ? "https" : "http",
                    endpoint.address().is_v6() ? "[" + address + "]" : address, endpoint.port());
  }
  return text;
}

void Acceptor::Start() {
  for (const auto& listener : listeners_) AwaitConnection(*listener);
}

void Acceptor::Close() {
  for (const auto& listener : listeners_) {
    ErrorCode ignored;
    listener->acceptor.close(ignored);
    listener->retry.cancel();
  }
}

void Acceptor::AwaitConnection(Listener& at) {
  if (!at.acceptor.is_open()) return;
  UntilDone([this, &at] {
    at.acceptor.async_wait(tcp::acceptor::wait_read, [this, &at](ErrorCode ec) {
      if (ec == asio::error::operation_aborted) return;
      ec ? Retry(at, kRetryAccept) : AcceptSome(at);
    });
  });
}

// Accepts waiting connections. When there are too many, closes those that have waited longest for
// their clients.
void Acceptor::AcceptSome(Listener& at) noexcept {
  ConnectionSet& connections = parts_.connections;
  for (int i = 0; i < kAcceptsAtOnce && at.acceptor.is_open(); ++i) {
    if (connections.num_closing() >= kMaxClosing) return Retry(at, kAwaitClosing);
    if (connections.num_staying() >= parts_.options.max_connections) {
      if (!IsAnyWaiting(at.acceptor)) return AwaitConnection(at);
      if (MakeRoom(1) == 0) return Retry(at, kRetryAccept);
    }
    ErrorCode ec;
    try {
      tcp::socket socket = at.acceptor.accept(asio::make_strand(io_), ec);
      if (!ec) StartConnection(std::move(socket), parts_);
    } catch (const std::exception&) {
      ec = asio::error::no_memory;
    }
    if (ec == asio::error::would_block) return AwaitConnection(at);
    if (ec && ec != asio::error::connection_aborted) return AwaitRoom(at);
  }
  UntilDone([this, &at] { asio::post(strand_, [this, &at] { AcceptSome(at); }); });
}

// Closes some connections, because the system has no descriptor or memory for another one.
void Acceptor::AwaitRoom(Listener& at) {
  const bool closing = parts_.connections.num_closing() > 0 || MakeRoom(kClosedForFiles) > 0;
  Retry(at, closing ? kAwaitClosing : kRetryAccept);
}

// Closes connections that wait for their clients, and returns how many. Only requests that have not
// fully arrived lose their answers. Logs it at most once a second.
size_t Acceptor::MakeRoom(size_t count) noexcept {
  try {
    const size_t closed = parts_.connections.MakeRoom(count);
    closed_for_room_ += closed;
    const uint64_t now_ns = MonotonicNs();
    if (closed_for_room_ == 0 || now_ns < tell_room_at_ns_) return closed;
    Log(LogLevel::kWarning,
        "connections were closed to make room; to keep more at once, raise --request-memory or "
        "the limit of open files",
        LogField("closed", std::exchange(closed_for_room_, 0)),
        LogField("kept", parts_.options.max_connections));
    tell_room_at_ns_ = now_ns + 1'000'000'000;
    return closed;
  } catch (...) {
    return 0;
  }
}

void Acceptor::Retry(Listener& at, std::chrono::milliseconds after) {
  UntilDone([this, &at, after] {
    at.retry.expires_after(after);
    at.retry.async_wait([this, &at](ErrorCode ec) {
      if (!ec) AcceptSome(at);
    });
  });
}

}  // namespace kvasir
