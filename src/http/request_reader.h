// RequestReader: reads the requests of one connection.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "http/byte_stream.h"
#include "http/http_message.h"
#include "http/http_text.h"

namespace kvasir {

// A request before its body is read.
struct RequestHead {
  HttpRequest request;                 // without its body
  std::optional<uint64_t> body_bytes;  // what Content-Length says
  std::optional<Error> refusal;        // what to answer instead; the body must not be read
  HttpVersion version = HttpVersion::k11;
  bool keep_alive = false;
  bool is_head = false;  // the answer has no body
  bool whole = false;    // no body follows
};

// Reads HTTP/1.1 requests one after the other; bytes of the next request wait in the buffer.
// States: between requests -> head read -> whole -> between requests. Calls with `done` return
// before the read ends; `done` must keep the reader and its stream alive, and gets the number of
// bytes of ReadSome. One strand.
class RequestReader {
 public:
  using ErrorCode = ByteStream::ErrorCode;
  using Done = ByteStream::Done;

  explicit RequestReader(ByteStream& stream);  // must outlive the reader
  ~RequestReader();

  // Tells whether bytes of a request have come. Skips empty lines before it (RFC 9112,
  // section 2.2).
  bool AtRequest();
  bool has_bytes() const;
  void DropBytes();
  // Frees what the request that was read has, and zeroes it in the buffer; bytes that came after it
  // stay. Allocates nothing.
  void DropRequest();

  // Reads the next bytes and keeps them. Does nothing while such a read is pending: that one
  // continues with its own `done`.
  void ReadSome(Done done);
  bool reading_some() const { return pending_; }
  // Reads headers of at most kHeadBytes. ReadError (http_text.h) explains error().
  void ReadHead(Done done);
  // REQUIRES: ReadHead is done, without an error.
  RequestHead Head() const;
  // Answers 100 Continue to a client that waits for it (Expect), and reads the body. REQUIRES: the
  // head is not whole.
  void ReadBody(uint64_t max_bytes, Done done);
  // REQUIRES: ReadBody is done, without an error.
  std::string TakeBody();

 private:
  struct State;  // of the HTTP library, whose headers are large
  enum class Part { kHead, kWhole };

  // Parses what has come, and reads on until the part is read.
  void ReadPart(Part part, Done done);
  void TakeBytes(Part part, Done done, ErrorCode ec, size_t bytes);
  ErrorCode Parse(Part part);

  ByteStream& stream_;
  bool pending_ = false;  // a ReadSome is pending
  const std::unique_ptr<State> state_;
};

}  // namespace kvasir
