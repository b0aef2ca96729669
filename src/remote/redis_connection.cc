#include "remote/redis_connection.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/result.h"

namespace kvasir {
namespace {

constexpr int kWaitMs = 10;
constexpr uint64_t kWaitNs = 10'000'000;
constexpr uint64_t kAddressesNs = 500'000'000;  // of all addresses
constexpr const char* kNoReply = "what the store sent is not a reply of Redis";

std::span<const std::byte> WordBytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

tl::unexpected<Error> SocketFailure(const char* what, int error) {
  return Fail(Code::kIoError, "{}: {}", what, std::strerror(error));
}

}  // namespace

void AppendCommand(std::string& text, std::initializer_list<std::string_view> words) {
  text += fmt::format("*{}\r\n", words.size());
  for (const std::string_view word : words) {
    text += fmt::format("${}\r\n", word.size());
    text += word;
    text += "\r\n";
  }
}

RedisConnection::RedisConnection() : buffer_(std::make_unique<char[]>(kBufferBytes)) {}

tl::unexpected<Error> RedisConnection::Closed(Error error) {
  Close();
  return tl::unexpected(std::move(error));
}

Status RedisConnection::Open(const RemoteAddress& address, const SocketAddresses& at,
                             const std::string& password, const Waits& waits,
                             const TlsContext* tls) {
  Close();
  begin_ = end_ = 0;
  asked_ns_ = MonotonicNs();
  KV_TRY(Connect(at, waits));
  if (tls != nullptr) KV_TRY(BeginTls(*tls, address.host, waits));
  const auto must_be_ok = [&](std::initializer_list<std::string_view> words) -> Status {
    KV_ASSIGN(const RedisReply reply, Ask(words, {}, waits));
    if (reply.is_ok()) return {};
    if (reply.kind != RedisReply::Kind::kError) return Closed({Code::kCorruption, kNoReply});
    return Closed({Code::kPermissionDenied, std::string(reply.text)});
  };
  if (!password.empty() && !address.user.empty()) {
    KV_TRY(must_be_ok({"AUTH", address.user, password}));
  } else if (!password.empty()) {
    KV_TRY(must_be_ok({"AUTH", password}));
  }
  if (address.database > 0) KV_TRY(must_be_ok({"SELECT", std::to_string(address.database)}));
  return {};
}

// Tries the addresses in order. Each but the last one has its share of half a second; that one
// waits as long as the caller does.
Status RedisConnection::Connect(const SocketAddresses& addresses, const Waits& waits) {
  int last = ECONNREFUSED;
  for (const SocketAddress& one : addresses) {
    Descriptor fd(socket(one.bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) {
      last = errno;
      continue;
    }
    const int on = 1;
    setsockopt(fd.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(fd.fd(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    socket_ = std::move(fd);
    const auto* const to = reinterpret_cast<const sockaddr*>(&one.bytes);
    if (connect(socket_.fd(), to, one.size) == 0) return {};
    last = errno;
    if (last == EINPROGRESS) {
      bool is_late = false;
      const uint64_t end_ns = MonotonicNs() + kAddressesNs / addresses.size();
      const Status ready = WaitFor(POLLOUT, [&] {
        is_late = &one != &addresses.back() && MonotonicNs() >= end_ns;
        return !is_late && waits();
      });
      if (is_late) {
        last = ETIMEDOUT;
        continue;
      }
      KV_TRY(ready);
      socklen_t size = sizeof(last);
      getsockopt(socket_.fd(), SOL_SOCKET, SO_ERROR, &last, &size);
      if (last == 0) return {};
    }
  }
  Close();
  return SocketFailure("cannot connect", last);
}

Status RedisConnection::BeginTls(const TlsContext& tls, const std::string& host,
                                 const Waits& waits) {
  auto begun = TlsStream::Begin(tls, socket_.fd(), host);
  if (!begun) return Closed(begun.error());
  tls_ = std::move(*begun);
  for (;;) {
    const Result<SocketStep> step = tls_->Handshake();
    if (!step) return Closed(step.error());
    if (step->events == 0) return {};
    const Status ready = WaitFor(step->events, waits);
    if (!ready && ready.error().code == Code::kCancelled) {
      return Fail(Code::kCancelled,
                  "TLS: the handshake takes too long; does the server speak TLS at this port?");
    }
    KV_TRY(ready);
  }
}

void RedisConnection::CloseStale() {
  if (!is_open()) return;
  bool is_quiet = false;
  if (tls_) {
    is_quiet = tls_->IsQuiet();
  } else {
    char byte;
    const ssize_t got = recv(socket_.fd(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    is_quiet = got < 0 && (errno == EAGAIN || errno == EINTR);
  }
  if (!is_quiet || begin_ != end_) Close();
}

Status RedisConnection::KeepWaiting(const Waits& waits) {
  const uint64_t now = MonotonicNs();
  if (now < asked_ns_ + kWaitNs) return {};
  asked_ns_ = now;
  if (waits()) return {};
  return Closed({Code::kCancelled, "the store takes too long"});
}

Status RedisConnection::WaitFor(short events, const Waits& waits) {
  for (;;) {
    KV_TRY(KeepWaiting(waits));  // also where bytes drip, and no wait takes long
    pollfd one{.fd = socket_.fd(), .events = events, .revents = 0};
    const int ready = poll(&one, 1, kWaitMs);
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) {
      return Closed({Code::kIoError, std::string("cannot wait: ") + std::strerror(errno)});
    }
  }
}

Status RedisConnection::Send(std::string_view text, const Waits& waits) {
  const std::array pieces{WordBytes(text)};
  return Send(pieces, waits);
}

Status RedisConnection::Send(std::span<const std::span<const std::byte>> pieces,
                             const Waits& waits) {
  for (std::span<const std::byte> piece : pieces) {
    while (!piece.empty()) {
      if (!is_open()) return Fail(Code::kIoError, "the connection is closed");
      const Result<SocketStep> step = TrySend(piece);
      if (!step) return Closed(step.error());
      piece = piece.subspan(step->bytes);
      if (step->events != 0) KV_TRY(WaitFor(step->events, waits));
    }
  }
  return {};
}

Result<SocketStep> RedisConnection::TrySend(std::span<const std::byte> bytes) {
  if (tls_) return tls_->Write(bytes);
  const ssize_t sent = send(socket_.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  if (sent >= 0) return SocketStep{.bytes = static_cast<size_t>(sent)};
  if (errno == EAGAIN) return SocketStep{.events = POLLOUT};
  if (errno == EINTR) return SocketStep{};
  return SocketFailure("cannot send", errno);
}

Result<SocketStep> RedisConnection::TryReceive(std::span<std::byte> bytes) {
  if (tls_) return tls_->Read(bytes);
  const ssize_t got = recv(socket_.fd(), bytes.data(), bytes.size(), 0);
  if (got > 0) return SocketStep{.bytes = static_cast<size_t>(got)};
  if (got == 0) return Fail(Code::kIoError, "the store closed the connection");
  if (errno == EAGAIN) return SocketStep{.events = POLLIN};
  if (errno == EINTR) return SocketStep{};
  return SocketFailure("cannot receive", errno);
}

Result<size_t> RedisConnection::Receive(std::span<std::byte> into, const Waits& waits) {
  for (;;) {
    if (!is_open()) return Fail(Code::kIoError, "the connection is closed");
    const std::span<char> room(buffer_.get() + end_, kBufferBytes - end_);
    const Result<SocketStep> step = TryReceive(into.empty() ? std::as_writable_bytes(room) : into);
    if (!step) return Closed(step.error());
    if (step->bytes > 0) return step->bytes;
    if (step->events != 0) KV_TRY(WaitFor(step->events, waits));
  }
}

// Returns a line without its end; it stays until the next read.
Result<std::string_view> RedisConnection::ReadLine(const Waits& waits) {
  size_t seen = 0;
  for (;;) {
    const std::string_view here(buffer_.get() + begin_, end_ - begin_);
    if (const size_t end = here.find("\r\n", seen); end != std::string_view::npos) {
      begin_ += end + 2;
      return here.substr(0, end);
    }
    if (here.size() > kMostLine) {
      return Closed({Code::kCorruption, "the store sent a line of over 1024 bytes"});
    }
    seen = here.empty() ? 0 : here.size() - 1;
    // The rest of a line goes after its beginning, which stays in one piece.
    if (kBufferBytes - end_ < kMostLine + 2 || begin_ == end_) {
      std::memmove(buffer_.get(), here.data(), here.size());
      begin_ = 0;
      end_ = here.size();
    }
    KV_ASSIGN(const size_t got, Receive({}, waits));
    end_ += got;
  }
}

Status RedisConnection::ReadBytes(std::span<std::byte> out, const Waits& waits) {
  const size_t here = std::min(out.size(), end_ - begin_);
  if (here > 0) std::memcpy(out.data(), buffer_.get() + begin_, here);
  begin_ += here;
  for (out = out.subspan(here); !out.empty();) {
    KV_ASSIGN(const size_t got, Receive(out, waits));
    out = out.subspan(got);
  }
  return {};
}

Result<RedisReply> RedisConnection::Read(std::span<std::byte> bulk, const Waits& waits) {
  if (!is_open()) return Fail(Code::kIoError, "the connection is closed");
  KV_ASSIGN(const std::string_view line, ReadLine(waits));
  const auto no_reply = [&] { return Closed({Code::kCorruption, kNoReply}); };
  if (line.empty()) return no_reply();
  RedisReply reply{.text = line.substr(1)};
  using enum RedisReply::Kind;
  switch (line[0]) {
    case '+':
      reply.kind = kText;
      return reply;
    case '-':
      reply.kind = kError;
      return reply;
    case ':':
      reply.kind = kInteger;
      break;
    case '$':
      reply.kind = kBulk;
      break;
    case '*':
      reply.kind = kArray;
      break;
    default:
      return no_reply();
  }
  const std::string_view digits = std::exchange(reply.text, {});
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), reply.number);
  if (error != std::errc() || end != digits.data() + digits.size()) return no_reply();
  if (reply.kind == kInteger) return reply;
  if (reply.number < -1) return no_reply();
  if (reply.number == -1) {
    reply.kind = kNil;
    return reply;
  }
  if (reply.kind == kArray) return reply;
  if (static_cast<uint64_t>(reply.number) > bulk.size()) {
    return Closed({Code::kCorruption,
                   fmt::format("the store announces a value of {} bytes; at most {} are wanted",
                               reply.number, bulk.size())});
  }
  KV_TRY(ReadBytes(bulk.first(static_cast<size_t>(reply.number)), waits));
  std::array<std::byte, 2> line_end;
  KV_TRY(ReadBytes(line_end, waits));
  if (line_end != std::array{std::byte{'\r'}, std::byte{'\n'}}) return no_reply();
  return reply;
}

Result<std::string_view> RedisConnection::ReadBulk(std::span<std::byte> bulk, const Waits& waits) {
  KV_ASSIGN(const RedisReply reply, Read(bulk, waits));
  if (reply.kind != RedisReply::Kind::kBulk) {
    return Closed({Code::kCorruption, "the store sent another kind of reply than a bulk"});
  }
  return std::string_view(reinterpret_cast<const char*>(bulk.data()),
                          static_cast<size_t>(reply.number));
}

Result<RedisReply> RedisConnection::Ask(std::initializer_list<std::string_view> words,
                                        std::span<std::byte> bulk, const Waits& waits) {
  std::string text;
  AppendCommand(text, words);
  KV_TRY(Send(text, waits));
  return Read(bulk, waits);
}

}  // namespace kvasir
