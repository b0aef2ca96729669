// ServerChannel: a connection of a command to a server, with TLS or without.
#pragma once

#include <openssl/types.h>

#include <memory>
#include <string>
#include <string_view>

#include "base/descriptor.h"
#include "kvasir/status.h"

namespace kvasir::cli {

enum class ServerTls : uint8_t {
  kNone,
  kVerified,   // the certificate is for the host, and the system trusts it, or SSL_CERT_FILE
  kUnverified  // of a server on this machine, which gets nothing that is secret
};

// Blocks, until `end_ns` of MonotonicNs at most, except while the system looks up the host's name.
// Errors: kUnavailable, and kPermissionDenied of a certificate that is not trusted; the message
// says only why.
class ServerChannel {
 public:
  static Result<ServerChannel> Open(const std::string& host, const std::string& port, ServerTls tls,
                                    uint64_t end_ns);

  Status Send(std::string_view text);
  // Returns what has come; nothing: the server closed the connection.
  Result<std::string_view> Receive();

 private:
  struct Free {
    void operator()(SSL_CTX* context) const;
    void operator()(SSL* session) const;
  };

  ServerChannel() = default;
  Status BeginTls(const std::string& host, ServerTls tls);
  // Runs a call of the socket, or of OpenSSL, until it need not wait. Returns its result.
  template <typename Call>
  Result<ssize_t> Run(short events, Call call);

  uint64_t end_ns_ = 0;
  Descriptor socket_;  // does not block
  std::unique_ptr<SSL_CTX, Free> context_;
  std::unique_ptr<SSL, Free> session_;  // null: without TLS
  char bytes_[4096] = {};
};

}  // namespace kvasir::cli
