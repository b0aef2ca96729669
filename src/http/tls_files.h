// TlsFiles: the certificate that a server proves its name with, and the files that it comes from.
#pragma once

#include <openssl/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kvasir/status.h"

namespace kvasir {

// A certificate with its key, ready for connections: TLS 1.2 and 1.3, and HTTP/1.1 by ALPN.
// Immutable.
class TlsCertificate {
 public:
  // Reads PEM files: the certificate with those between it and its authority, and its key.
  // kInvalidArgument, field "tls_cert" or "tls_key": a file cannot be used; kExhausted: no memory.
  static Result<std::shared_ptr<const TlsCertificate>> Read(const std::string& certificate_path,
                                                            const std::string& key_path);

  SSL_CTX* context() const { return context_.get(); }
  // Returns the names and addresses that it is valid for, with commas; "-": none.
  const std::string& names() const { return names_; }
  int64_t begins_unix_s() const { return begins_unix_s_; }
  int64_t ends_unix_s() const { return ends_unix_s_; }
  bool IsValidAt(int64_t unix_s) const { return begins_unix_s_ <= unix_s && unix_s < ends_unix_s_; }
  // Returns what its owner should do something about: it has expired or soon does, or other users
  // can read the key.
  std::vector<std::string> Warnings(int64_t now_unix_s) const;

 private:
  TlsCertificate() = default;

  std::shared_ptr<SSL_CTX> context_;
  std::string names_;
  int64_t begins_unix_s_ = 0, ends_unix_s_ = 0;
  std::string certificate_path_, key_path_;
  bool is_key_public_ = false;
};

// The two files of a server, and the certificate that they had when they were last read. One strand
// after Open, except for ends_unix_s.
class TlsFiles {
 public:
  // Reads them, and logs the warnings. Errors are those of TlsCertificate::Read.
  static Result<std::unique_ptr<TlsFiles>> Open(std::string certificate_path, std::string key_path);

  // Reads them again, for connections that come from now on. After an error, whose message names
  // the flag, the certificate of before stays; kInvalidArgument also where the new one is not valid
  // now and the old one is.
  Status Reload();

  const TlsCertificate& certificate() const { return *certificate_; }
  // Returns until when the certificate is valid, from any thread.
  int64_t ends_unix_s() const { return ends_unix_s_.load(std::memory_order_relaxed); }
  const std::string& certificate_path() const { return certificate_path_; }
  // Returns "chat.example, 127.0.0.1; until 2027-02-26 22:41 UTC".
  std::string Text() const;

 private:
  TlsFiles(std::string certificate_path, std::string key_path)
      : certificate_path_(std::move(certificate_path)), key_path_(std::move(key_path)) {}
  void Use(std::shared_ptr<const TlsCertificate> certificate);

  const std::string certificate_path_, key_path_;
  std::shared_ptr<const TlsCertificate> certificate_;
  std::atomic<int64_t> ends_unix_s_ = 0;  // relaxed: a number alone, which orders nothing
};

}  // namespace kvasir
