// RequestReader: from the bytes of one connection to its requests.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/system/error_code.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "server/errors.h"
#include "server/service.h"

namespace kvasir {

// What is known of a request before its body is read.
struct RequestHead {
  HttpRequest request;                 // without its body
  std::optional<uint64_t> body_bytes;  // what Content-Length says
  std::optional<Error> refusal;        // what to answer instead; the body must not be read
  bool http11 = true;
  bool keep_alive = false;
  bool is_head = false;  // the answer has no body
  bool whole = false;    // no body follows
};

// Reads HTTP/1.1 requests, one after the other; what comes too early waits in the buffer. States:
// between requests -> head read -> whole -> between requests. What ends with `done` goes on after
// the call returns; `done` must keep the reader and its socket alive. One strand.
class RequestReader {
 public:
  using ErrorCode = boost::system::error_code;
  using Done = std::function<void(ErrorCode error, size_t bytes)>;

  explicit RequestReader(boost::asio::ip::tcp::socket& socket);  // must outlive the reader
  ~RequestReader();

  // Whether bytes of a request have come. Skips empty lines before it (RFC 9112, section 2.2).
  bool AtRequest();
  bool has_bytes() const;
  void DropBytes();

  // Reads what comes next and keeps it. Nothing where such a read is pending: then that one goes
  // on, with its own `done`.
  void ReadSome(Done done);
  bool reading_some() const { return pending_; }
  // Reads a head of at most kHeadBytes; what error() means is in ReadError (http_text.h).
  void ReadHead(Done done);
  // REQUIRES: ReadHead is done, without an error.
  RequestHead Head() const;
  // Tells a client that waits for it to go on (Expect), and reads. REQUIRES: a head that is not
  // whole.
  void ReadBody(uint64_t max_bytes, Done done);
  // REQUIRES: ReadBody is done, without an error.
  std::string TakeBody();

 private:
  struct State;  // of the HTTP library, whose headers are large

  boost::asio::ip::tcp::socket& socket_;
  bool pending_ = false;  // a ReadSome
  const std::unique_ptr<State> state_;
};

}  // namespace kvasir
