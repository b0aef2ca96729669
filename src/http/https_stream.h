// HttpsStream: TLS of a server over a socket.
#pragma once

#include <openssl/types.h>

#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "http/byte_stream.h"
#include "http/plain_stream.h"
#include "http/tls_files.h"

namespace kvasir {

// Reads and writes through OpenSSL, which tries on the socket and says what to wait for: no bytes
// wait in between. States: made -> handshake done, or the client speaks plain HTTP: then the bytes
// pass as they are. One strand.
class HttpsStream final : public ByteStream {
 public:
  // `socket` must outlive the stream. Throws std::bad_alloc.
  HttpsStream(boost::asio::ip::tcp::socket& socket, const TlsCertificate& certificate);
  ~HttpsStream() override;
  HttpsStream(const HttpsStream&) = delete;
  HttpsStream& operator=(const HttpsStream&) = delete;

  // Comes first. An error: fault() says what was wrong, and the connection must end.
  void Handshake(Done done);
  // Tells whether the client sent something else than TLS that may be HTTP.
  bool is_plain() const { return is_plain_; }
  const std::string& fault() const { return fault_; }

  void ReadSome(boost::asio::mutable_buffer to, Done done) override;
  void Write(boost::asio::const_buffer from, Done done) override;
  boost::asio::any_io_executor executor() override { return socket_.get_executor(); }
  // Tells the client that nothing more comes, so that it can distinguish the end from a cut.
  // REQUIRES: no write is pending.
  void EndSending() noexcept;

 private:
  friend struct SocketBio;
  // One of OpenSSL's calls: 1 when it is done, with the bytes that it read or wrote.
  struct Attempt {
    std::function<int(size_t* bytes)> call;
    Done done;
  };
  enum class Caller { kUser, kLoop };

  void Try(Attempt attempt, Caller caller);
  void Wait(boost::asio::ip::tcp::socket::wait_type what, Attempt attempt);
  int Shake();
  ErrorCode ErrorOf(int error, int system_error);
  // Checks the first bytes that the client sent. False: the handshake must end.
  bool CheckHello(const char* bytes, size_t size);

  boost::asio::ip::tcp::socket& socket_;
  PlainStream plain_{socket_};
  const std::unique_ptr<SSL, void (*)(SSL*)> session_;
  bool is_plain_ = false;
  std::array<uint8_t, 9> hello_{};  // the heads of the client's first record and message
  size_t hello_seen_ = 0;           // how many of these bytes have come
  std::string fault_;
};

}  // namespace kvasir
