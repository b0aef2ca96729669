// RedisConnection: commands to a Redis or Valkey server, and its replies (RESP2).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/descriptor.h"
#include "kvasir/status.h"
#include "remote/host_lookup.h"
#include "remote/remote_address.h"
#include "remote/tls_stream.h"

namespace kvasir {

// Appends a command to `text`.
void AppendCommand(std::string& text, std::initializer_list<std::string_view> words);

// One reply, or one element of an array.
struct RedisReply {
  enum class Kind : uint8_t { kText, kError, kInteger, kBulk, kNil, kArray };
  Kind kind = Kind::kNil;
  int64_t number = 0;          // an integer; bytes of a bulk, which are in the caller's memory;
                               // elements of an array, which are read next
  std::string_view text = {};  // of kText and kError, until the next read

  bool is_ok() const { return kind == Kind::kText && text == "OK"; }
};

// A connection of one thread. Allocates nothing that a server announces: a bulk goes into the
// caller's memory, and one that is longer closes the connection. Where a call fails, the connection
// is closed.
class RedisConnection {
 public:
  // StoreClient::Waits. False: it gives up (kCancelled).
  using Waits = std::function<bool()>;
  static constexpr size_t kBufferBytes = 16384;  // what comes, except bulks of the caller
  static constexpr size_t kTlsBytes = 65536;     // of OpenSSL, in the middle of a handshake

  RedisConnection();
  bool is_open() const { return static_cast<bool>(socket_); }
  void Close() {
    tls_.reset();
    socket_ = Descriptor();
  }
  // Closes it where the other side has ended it, or sent what was not asked for. REQUIRES: all
  // replies were read.
  void CloseStale();
  // Takes over a socket that is connected and does not block.
  void Adopt(Descriptor socket) {
    Close();
    socket_ = std::move(socket);
    begin_ = end_ = 0;
    asked_ns_ = MonotonicNs();
  }
  // Connects to the first address of the host that answers, and says who we are. `tls`: where the
  // address wants it; it must outlive the connection. kIoError; kPermissionDenied: the server
  // refuses user or password, with its words.
  Status Open(const RemoteAddress& address, const SocketAddresses& at, const std::string& password,
              const Waits& waits, const TlsContext* tls = nullptr);

  // Sends all of these bytes.
  Status Send(std::span<const std::span<const std::byte>> pieces, const Waits& waits);
  Status Send(std::string_view text, const Waits& waits);
  // Reads a reply; `bulk` gets the bytes of a bulk. kCorruption: it is longer, or no reply at all.
  Result<RedisReply> Read(std::span<std::byte> bulk, const Waits& waits);
  // Reads a reply that can only be a bulk, and returns what it put into `bulk`. kCorruption: it is
  // another kind of reply.
  Result<std::string_view> ReadBulk(std::span<std::byte> bulk, const Waits& waits);
  // Sends one command and reads its reply, which is not an array.
  Result<RedisReply> Ask(std::initializer_list<std::string_view> words, std::span<std::byte> bulk,
                         const Waits& waits);

 private:
  static constexpr size_t kMostLine = 1024;

  Status Connect(const SocketAddresses& addresses, const Waits& waits);
  Status BeginTls(const TlsContext& tls, const std::string& host, const Waits& waits);
  // Tries once; errors are of the socket or of TLS.
  Result<SocketStep> TrySend(std::span<const std::byte> bytes);
  Result<SocketStep> TryReceive(std::span<std::byte> bytes);
  Status WaitFor(short events, const Waits& waits);
  // Asks `waits` where that was 10 ms ago.
  Status KeepWaiting(const Waits& waits);
  // Reads what has come, at least a byte, into `into`, or into the buffer where that is empty.
  Result<size_t> Receive(std::span<std::byte> into, const Waits& waits);
  Result<std::string_view> ReadLine(const Waits& waits);
  Status ReadBytes(std::span<std::byte> out, const Waits& waits);
  tl::unexpected<Error> Closed(Error error);

  Descriptor socket_;
  std::optional<TlsStream> tls_;          // over the socket
  const std::unique_ptr<char[]> buffer_;  // [kBufferBytes]
  size_t begin_ = 0, end_ = 0;            // of what came and was not read
  uint64_t asked_ns_ = 0;                 // when Waits was called last
};

}  // namespace kvasir
