#include "remote/tls_stream.h"

#include <arpa/inet.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "base/result.h"

namespace kvasir {
namespace {

constexpr size_t kMostBytes = size_t{1} << 30;  // of one call, which takes an int

int SocketOf(BIO* bio) { return static_cast<int>(reinterpret_cast<intptr_t>(BIO_get_data(bio))); }

bool MayTryAgain() { return errno == EAGAIN || errno == EINTR; }

// Sends without SIGPIPE, which OpenSSL's own writes would raise.
int WriteToSocket(BIO* bio, const char* bytes, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t sent = send(SocketOf(bio), bytes, static_cast<size_t>(size), MSG_NOSIGNAL);
  if (sent < 0 && MayTryAgain()) BIO_set_retry_write(bio);
  return static_cast<int>(sent);
}

int ReadFromSocket(BIO* bio, char* bytes, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t got = recv(SocketOf(bio), bytes, static_cast<size_t>(size), 0);
  if (got < 0 && MayTryAgain()) BIO_set_retry_read(bio);
  return static_cast<int>(got);
}

long ControlSocket(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

// Returns why OpenSSL failed on this thread.
std::string LastReason() {
  const char* const reason = ERR_reason_error_string(ERR_peek_last_error());
  return reason != nullptr ? reason : "unknown error";
}

bool IsIpAddress(const std::string& host) {
  in6_addr address;
  return inet_pton(AF_INET, host.c_str(), &address) == 1 ||
         inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

tl::unexpected<Error> NoMemoryForTls() { return Fail(Code::kExhausted, "TLS: no memory"); }

}  // namespace

void TlsContext::Free::operator()(ssl_ctx_st* context) const { SSL_CTX_free(context); }
void TlsContext::Free::operator()(bio_method_st* method) const { BIO_meth_free(method); }
void TlsStream::Free::operator()(ssl_st* session) const { SSL_free(session); }

Result<std::shared_ptr<const TlsContext>> TlsContext::Create(const std::string& ca_file) {
  ERR_clear_error();
  const std::shared_ptr<TlsContext> made(new TlsContext());
  made->socket_.reset(BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "socket"));
  made->context_.reset(SSL_CTX_new(TLS_client_method()));
  if (!made->socket_ || !made->context_) return NoMemoryForTls();
  BIO_meth_set_write(made->socket_.get(), &WriteToSocket);
  BIO_meth_set_read(made->socket_.get(), &ReadFromSocket);
  BIO_meth_set_ctrl(made->socket_.get(), &ControlSocket);
  SSL_CTX* const context = made->context_.get();
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                SSL_MODE_RELEASE_BUFFERS);
  const bool is_read = ca_file.empty()
                           ? SSL_CTX_set_default_verify_paths(context) == 1
                           : SSL_CTX_load_verify_locations(context, ca_file.c_str(), nullptr) == 1;
  if (!is_read) {
    return FailField(Code::kInvalidArgument, "remote_ca", "no certificate can be read from {}: {}",
                     ca_file.empty() ? "the system's folder" : ca_file, LastReason());
  }
  return made;
}

Result<TlsStream> TlsStream::Begin(const TlsContext& context, int fd, const std::string& host) {
  ERR_clear_error();
  TlsStream stream;
  stream.host_ = host;
  stream.session_.reset(SSL_new(context.context_.get()));
  BIO* const bio = stream.session_ ? BIO_new(context.socket_.get()) : nullptr;
  if (bio == nullptr) return NoMemoryForTls();
  BIO_set_data(bio, reinterpret_cast<void*>(static_cast<intptr_t>(fd)));
  BIO_set_init(bio, 1);
  SSL* const session = stream.session_.get();
  SSL_set_bio(session, bio, bio);  // it frees the two as one
  SSL_set_connect_state(session);
  X509_VERIFY_PARAM* const wanted = SSL_get0_param(session);
  const bool is_ip = IsIpAddress(host);
  X509_VERIFY_PARAM_set_hostflags(wanted, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
  const bool is_set = is_ip ? X509_VERIFY_PARAM_set1_ip_asc(wanted, host.c_str()) == 1
                            : X509_VERIFY_PARAM_set1_host(wanted, host.c_str(), 0) == 1 &&
                                  SSL_set_tlsext_host_name(session, host.c_str()) == 1;
  if (!is_set) return Fail(Code::kIoError, "TLS: '{}' cannot be a host's name", host);
  return stream;
}

Result<SocketStep> TlsStream::Handshake() {
  ERR_clear_error();
  errno = 0;
  const int done = SSL_do_handshake(session_.get());
  if (done == 1) return SocketStep{};
  return StepOf(done, true);
}

Result<SocketStep> TlsStream::Write(std::span<const std::byte> bytes) {
  ERR_clear_error();
  errno = 0;
  const int size = static_cast<int>(std::min(bytes.size(), kMostBytes));
  const int sent = SSL_write(session_.get(), bytes.data(), size);
  if (sent > 0) return SocketStep{.bytes = static_cast<size_t>(sent)};
  return StepOf(sent, false);
}

Result<SocketStep> TlsStream::Read(std::span<std::byte> bytes) {
  ERR_clear_error();
  errno = 0;
  const int size = static_cast<int>(std::min(bytes.size(), kMostBytes));
  const int got = SSL_read(session_.get(), bytes.data(), size);
  if (got > 0) return SocketStep{.bytes = static_cast<size_t>(got)};
  return StepOf(got, false);
}

bool TlsStream::IsQuiet() {
  ERR_clear_error();
  char byte;
  const int got = SSL_peek(session_.get(), &byte, 1);
  return got <= 0 && SSL_get_error(session_.get(), got) == SSL_ERROR_WANT_READ;
}

Result<SocketStep> TlsStream::StepOf(int result, bool is_handshake) {
  const int number = errno;
  const int error = SSL_get_error(session_.get(), result);
  if (error == SSL_ERROR_WANT_READ) return SocketStep{.events = POLLIN};
  if (error == SSL_ERROR_WANT_WRITE) return SocketStep{.events = POLLOUT};
  const long verified = SSL_get_verify_result(session_.get());
  if (is_handshake && verified != X509_V_OK) {
    return Fail(Code::kIoError, "TLS: the certificate of {} is refused: {}", host_,
                X509_verify_cert_error_string(verified));
  }
  std::string why = "the store closed the connection";
  if (error == SSL_ERROR_SYSCALL && number != 0) {
    why = std::strerror(number);
  } else if (error == SSL_ERROR_SSL) {
    why = LastReason();
  }
  return Fail(Code::kIoError, "TLS: {}{}", why,
              is_handshake ? "; does the server speak TLS at this port?" : "");
}

}  // namespace kvasir
