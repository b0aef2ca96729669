#include "http/https_stream.h"

#include <fmt/format.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <new>
#include <utility>

#include "base/check.h"

namespace kvasir {

namespace asio = boost::asio;
using asio::ip::tcp;

namespace {

// The longest first message of a client. OpenSSL takes the memory that a message announces before
// it has come, up to 128 KiB; those of browsers, with keys for after quantum computers, have 2 KiB.
constexpr uint32_t kMaxHelloBytes = 16 << 10;
// Bytes of a record's head, and of its first message's: kind and length.
constexpr size_t kRecordHeadBytes = 5, kMessageHeadBytes = 4;

bool IsTryAgain(int error) { return error == EAGAIN || error == EINTR; }

}  // namespace

// OpenSSL's way to the socket. Asks the stream for the descriptor at each call, because after a
// close another connection may get its number.
struct SocketBio {
  static int Write(BIO* bio, const char* bytes, int size) {
    BIO_clear_retry_flags(bio);
    const ssize_t sent =
        send(DescriptorOf(bio), bytes, static_cast<size_t>(size), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && IsTryAgain(errno)) BIO_set_retry_write(bio);
    return static_cast<int>(sent);
  }

  static int Read(BIO* bio, char* bytes, int size) {
    BIO_clear_retry_flags(bio);
    const ssize_t got = recv(DescriptorOf(bio), bytes, static_cast<size_t>(size), MSG_DONTWAIT);
    if (got < 0 && IsTryAgain(errno)) BIO_set_retry_read(bio);
    if (got > 0 && !StreamOf(bio).CheckHello(bytes, static_cast<size_t>(got))) {
      errno = EMSGSIZE;
      return -1;
    }
    return static_cast<int>(got);
  }

  static long Control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

  static HttpsStream& StreamOf(BIO* bio) { return *static_cast<HttpsStream*>(BIO_get_data(bio)); }
  static int DescriptorOf(BIO* bio) { return StreamOf(bio).socket_.native_handle(); }

  // Lives as long as the process. Null: no memory.
  static const BIO_METHOD* Method() {
    static BIO_METHOD* const method = [] {
      BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "connection");
      if (made == nullptr) return made;
      BIO_meth_set_write(made, &Write);
      BIO_meth_set_read(made, &Read);
      BIO_meth_set_ctrl(made, &Control);
      return made;
    }();
    return method;
  }
};

HttpsStream::HttpsStream(tcp::socket& socket, const TlsCertificate& certificate)
    : socket_(socket), session_(SSL_new(certificate.context()), &SSL_free) {
  BIO* const bio = session_ && SocketBio::Method() ? BIO_new(SocketBio::Method()) : nullptr;
  if (bio == nullptr) {
    ERR_clear_error();
    throw std::bad_alloc();
  }
  BIO_set_data(bio, this);
  BIO_set_init(bio, 1);
  SSL_set_bio(session_.get(), bio, bio);  // it frees the two as one
  SSL_set_accept_state(session_.get());
}

HttpsStream::~HttpsStream() = default;

void HttpsStream::Handshake(Done done) {
  Wait(tcp::socket::wait_read, {[this](size_t*) { return Shake(); }, std::move(done)});
}

int HttpsStream::Shake() {
  char first = 0;
  if (hello_seen_ == 0 && recv(socket_.native_handle(), &first, 1, MSG_PEEK | MSG_DONTWAIT) == 1 &&
      first >= 'A' && first <= 'Z') {  // a method of HTTP; TLS begins with 22
    is_plain_ = true;
    return 1;
  }
  return SSL_do_handshake(session_.get());
}

bool HttpsStream::CheckHello(const char* bytes, size_t size) {
  static_assert(kRecordHeadBytes + kMessageHeadBytes == sizeof(hello_));
  const size_t more = std::min(size, hello_.size() - hello_seen_);
  std::copy_n(bytes, more, hello_.data() + hello_seen_);
  hello_seen_ += more;
  const uint32_t record_bytes = hello_[3] << 8 | hello_[4];
  if (hello_seen_ >= kRecordHeadBytes && record_bytes < kMessageHeadBytes) {
    fault_ = fmt::format("its first record has {} bytes; the head of a message takes {}",
                         record_bytes, kMessageHeadBytes);
    return false;
  }
  const uint32_t hello_bytes = hello_[6] << 16 | hello_[7] << 8 | hello_[8];
  if (hello_seen_ < hello_.size() || hello_bytes <= kMaxHelloBytes) return true;
  fault_ = fmt::format("its first message has {} bytes; at most {} are allowed", hello_bytes,
                       kMaxHelloBytes);
  return false;
}

void HttpsStream::ReadSome(asio::mutable_buffer to, Done done) {
  if (is_plain_) return plain_.ReadSome(to, std::move(done));
  const auto read = [this, to](size_t* bytes) {
    return SSL_read_ex(session_.get(), to.data(), to.size(), bytes);
  };
  Try({read, std::move(done)}, Caller::kUser);
}

void HttpsStream::Write(asio::const_buffer from, Done done) {
  if (is_plain_) return plain_.Write(from, std::move(done));
  const auto write = [this, from](size_t* bytes) {
    if (from.size() == 0) return 1;  // OpenSSL takes that for an error
    return SSL_write_ex(session_.get(), from.data(), from.size(), bytes);
  };
  Try({write, std::move(done)}, Caller::kUser);
}

// Makes an attempt. A user's call returns before its `done` is called.
void HttpsStream::Try(Attempt attempt, Caller caller) {
  ERR_clear_error();
  errno = 0;
  size_t bytes = 0;
  ErrorCode ec;
  const int result = attempt.call(&bytes);
  if (result != 1) {
    const int system_error = errno, error = SSL_get_error(session_.get(), result);
    if (error == SSL_ERROR_WANT_READ) return Wait(tcp::socket::wait_read, std::move(attempt));
    if (error == SSL_ERROR_WANT_WRITE) return Wait(tcp::socket::wait_write, std::move(attempt));
    ec = ErrorOf(error, system_error);
    ERR_clear_error();
  }
  if (caller == Caller::kLoop) return attempt.done(ec, bytes);
  asio::post(socket_.get_executor(),
             [done = std::move(attempt.done), ec, bytes] { done(ec, bytes); });
}

void HttpsStream::Wait(tcp::socket::wait_type what, Attempt attempt) {
  socket_.async_wait(what, [this, attempt = std::move(attempt)](ErrorCode ec) mutable {
    ec ? attempt.done(ec, 0) : Try(std::move(attempt), Caller::kLoop);
  });
}

HttpsStream::ErrorCode HttpsStream::ErrorOf(int error, int system_error) {
  if (error ==
      SSL_ERROR_ZERO_RETURN) {  // also an end without TLS's farewell: HTTP frames its bytes
    fault_ = "the client is gone";
    return asio::error::eof;
  }
  const char* const reason = ERR_reason_error_string(ERR_peek_last_error());
  if (!fault_.empty()) {  // of the client's first message
    return asio::error::invalid_argument;
  }
  if (error == SSL_ERROR_SYSCALL) {
    const ErrorCode ec(system_error, boost::system::system_category());
    fault_ = system_error != 0 ? ec.message() : "the client is gone";
    return system_error != 0 ? ec : ErrorCode(asio::error::eof);
  }
  fault_ = reason != nullptr ? reason : "unknown error";
  return asio::error::invalid_argument;
}

void HttpsStream::EndSending() noexcept {
  if (is_plain_ || SSL_is_init_finished(session_.get()) != 1) return;
  SSL_shutdown(session_.get());  // does not wait; a full socket loses it
  ERR_clear_error();
}

}  // namespace kvasir
