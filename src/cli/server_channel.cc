#include "cli/server_channel.h"

#include <fmt/format.h>
#include <netdb.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/result.h"

namespace kvasir::cli {
namespace {

tl::unexpected<Error> NotReached(std::string_view why) {
  return Fail(Code::kUnavailable, "{}", why);
}

// Waits until the socket is ready.
Status AwaitSocket(int fd, short events, uint64_t end_ns) {
  for (;;) {
    const uint64_t now = MonotonicNs();
    if (now >= end_ns) return NotReached("no answer in time");
    pollfd socket{fd, events, 0};
    const int ready = poll(&socket, 1, static_cast<int>((end_ns - now) / 1'000'000 + 1));
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return NotReached(std::strerror(errno));
  }
}

Status Connect(int fd, const addrinfo& to, uint64_t end_ns) {
  int error = connect(fd, to.ai_addr, to.ai_addrlen) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    KV_TRY(AwaitSocket(fd, POLLOUT, end_ns));
    socklen_t size = sizeof(error);
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  }
  if (error == 0) return {};
  return NotReached(std::strerror(error));
}

Result<Descriptor> ConnectTo(const std::string& host, const std::string& port, uint64_t end_ns) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failed = getaddrinfo(host.c_str(), port.c_str(), &wanted, &found);
  if (failed != 0) return NotReached(gai_strerror(failed));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(found, freeaddrinfo);
  Status connected;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    Descriptor made(socket(one->ai_family, one->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    connected = made ? Connect(made.fd(), *one, end_ns) : NotReached(std::strerror(errno));
    if (connected) return made;
  }
  return tl::unexpected(std::move(connected).error());
}

}  // namespace

void ServerChannel::Free::operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
void ServerChannel::Free::operator()(SSL* session) const { SSL_free(session); }

Result<ServerChannel> ServerChannel::Open(const std::string& host, const std::string& port,
                                          ServerTls tls, uint64_t end_ns) {
  ServerChannel channel;
  channel.end_ns_ = end_ns;
  KV_ASSIGN(channel.socket_, ConnectTo(host, port, end_ns));
  if (tls != ServerTls::kNone) KV_TRY(channel.BeginTls(host, tls));
  return channel;
}

template <typename Call>
Result<ssize_t> ServerChannel::Run(short events, Call call) {
  for (;;) {
    ERR_clear_error();
    const ssize_t result = call();
    if (result > 0) return result;
    if (session_) {
      const int error = SSL_get_error(session_.get(), static_cast<int>(result));
      if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) return result;
      events = error == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT;
    } else if (result == 0 || (errno != EAGAIN && errno != EINTR)) {
      return result;
    }
    KV_TRY(AwaitSocket(socket_.fd(), events, end_ns_));
  }
}

Status ServerChannel::BeginTls(const std::string& host, ServerTls tls) {
  IgnoreBrokenPipes();  // OpenSSL's writes raise them
  context_.reset(SSL_CTX_new(TLS_client_method()));
  if (context_) session_.reset(SSL_new(context_.get()));
  if (!session_) return NotReached("no memory for TLS");
  SSL* const session = session_.get();
  SSL_set_min_proto_version(session, TLS1_2_VERSION);
  SSL_CTX_set_default_verify_paths(context_.get());
  if (tls == ServerTls::kVerified) SSL_set_verify(session, SSL_VERIFY_PEER, nullptr);
  X509_VERIFY_PARAM* const wanted = SSL_get0_param(session);
  if (X509_VERIFY_PARAM_set1_ip_asc(wanted, host.c_str()) != 1) {
    X509_VERIFY_PARAM_set1_host(wanted, host.c_str(), 0);
    SSL_set_tlsext_host_name(session, host.c_str());
  }
  SSL_set_fd(session, socket_.fd());
  KV_ASSIGN(const ssize_t connected, Run(POLLIN, [&] { return SSL_connect(session); }));
  if (connected == 1) return {};
  const long verified = SSL_get_verify_result(session);
  if (tls == ServerTls::kVerified && verified != X509_V_OK) {
    return Fail(Code::kPermissionDenied, "{}", X509_verify_cert_error_string(verified));
  }
  const char* const reason = ERR_reason_error_string(ERR_peek_last_error());
  return NotReached(fmt::format("TLS: {}", reason != nullptr ? reason : "the connection broke"));
}

Status ServerChannel::Send(std::string_view text) {
  const auto size = static_cast<ssize_t>(text.size());
  KV_ASSIGN(const ssize_t sent, Run(POLLOUT, [&]() -> ssize_t {
              return session_ ? SSL_write(session_.get(), text.data(), static_cast<int>(size))
                              : send(socket_.fd(), text.data(), text.size(), MSG_NOSIGNAL);
            }));
  if (sent == size) return {};
  return NotReached(session_ ? "the connection broke" : std::strerror(errno));
}

Result<std::string_view> ServerChannel::Receive() {
  KV_ASSIGN(const ssize_t got, Run(POLLIN, [&]() -> ssize_t {
              return session_ ? SSL_read(session_.get(), bytes_, sizeof(bytes_))
                              : recv(socket_.fd(), bytes_, sizeof(bytes_), 0);
            }));
  return std::string_view(bytes_, static_cast<size_t>(std::max<ssize_t>(got, 0)));
}

}  // namespace kvasir::cli
