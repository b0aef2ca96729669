// TlsStream: TLS of a client that verifies the server, over a socket that does not block.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "kvasir/status.h"

struct bio_method_st;  // OpenSSL's
struct ssl_ctx_st;
struct ssl_st;

namespace kvasir {

// How far an attempt on a socket came.
struct SocketStep {
  size_t bytes = 0;
  short events = 0;  // wait for these of poll() before the next attempt; 0: it may follow at once
};

// Which certificates are trusted. Thread-safe.
class TlsContext {
 public:
  // Trusts the certificates of a PEM file; "": those that the system trusts. kInvalidArgument
  // (field `remote_ca`): no certificate can be read. kExhausted: no memory.
  static Result<std::shared_ptr<const TlsContext>> Create(const std::string& ca_file);

 private:
  friend class TlsStream;
  struct Free {
    void operator()(ssl_ctx_st* context) const;
    void operator()(bio_method_st* method) const;
  };

  TlsContext() = default;

  std::unique_ptr<bio_method_st, Free> socket_;  // how a stream reads and writes
  std::unique_ptr<ssl_ctx_st, Free> context_;
};

// One thread. Each call makes one attempt. Errors (kIoError) end the stream, and say why: what is
// wrong with the certificate, or what the other side sent.
class TlsStream {
 public:
  // Begins a session on a socket that is connected to the host. REQUIRES: context and socket
  // outlive it.
  static Result<TlsStream> Begin(const TlsContext& context, int fd, const std::string& host);

  // Goes on with the handshake; it is done where nothing is to be waited for.
  Result<SocketStep> Handshake();
  // Writes a part of the bytes. After a step without bytes the same ones must be given again.
  Result<SocketStep> Write(std::span<const std::byte> bytes);
  // Reads what has come, at most as many bytes.
  Result<SocketStep> Read(std::span<std::byte> bytes);
  // Returns whether nothing has come that Read would return, an end neither.
  bool IsQuiet();

 private:
  struct Free {
    void operator()(ssl_st* session) const;
  };

  TlsStream() = default;
  // Returns what a call that returned `result` waits for, or why it failed.
  Result<SocketStep> StepOf(int result, bool is_handshake);

  std::unique_ptr<ssl_st, Free> session_;
  std::string host_;
};

}  // namespace kvasir
