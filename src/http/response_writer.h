// ResponseWriter: writes the answers of one connection.
#pragma once

#include <boost/system/error_code.hpp>
#include <cstdint>
#include <functional>
#include <string>

#include "base/parts.h"
#include "http/byte_stream.h"
#include "http/errors.h"
#include "http/http_text.h"

namespace kvasir {

// Frames answers for HTTP and sends them, one write at a time; later Puts wait. Heads come from
// HeadText (http_text.h), without the headers that frame the body. One strand.
class ResponseWriter {
 public:
  using Done = std::function<void(boost::system::error_code)>;

  explicit ResponseWriter(ByteStream& stream)  // must outlive the writer
      : stream_(stream) {}

  // The parts of a request that an answer's framing depends on.
  struct Request {
    HttpVersion version = HttpVersion::k11;
    bool is_head = false;  // its method is HEAD
  };
  // Makes the next answers to this request.
  void SetRequest(Request request) { request_ = request; }
  // Tells whether the client can find the end of a body of unknown length; if not, closing the
  // connection ends the body.
  bool frames() const { return request_.version == HttpVersion::k11; }

  // Generates the beginning of a body that comes in parts. A short body becomes complete and then
  // has no parts.
  static void Gather(HttpResponse* response);

  // Adds a gathered answer. Its parts are generated while they are sent; for HEAD none are.
  void Put(std::string head, HttpResponse response);
  // Puts a part of a stream of events: first its head, then its texts, then its end.
  void PutStreamHead(const std::string& head);
  void PutStreamText(const std::string& text);
  void PutStreamEnd();

  // Writes what was put. Calls `done` after the call has returned; `done` must keep the writer and
  // its stream alive. REQUIRES: !writing().
  void Write(Done done);
  bool writing() const { return writing_; }
  // Tells whether there is more to write; generates the next part of the body when needed.
  bool Advance();
  // Tells whether the end of the answer was put; NextAnswer resets it.
  bool ended() const { return ended_; }
  bool all_in_flight() const { return ended_ && unsent_.empty(); }
  void NextAnswer() { ended_ = false; }
  // Drops the parts that are not generated yet.
  void DropParts() { parts_ = Parts(); }

  // Returns the memory of what was put and is not sent yet, without parts that are not generated
  // yet.
  uint64_t held_bytes() const { return unsent_.capacity() + in_flight_.capacity(); }

 private:
  ByteStream& stream_;
  Request request_;
  bool writing_ = false;
  bool ended_ = false;  // all of the answer is in unsent_ or in_flight_
  Parts parts_;         // parts of the current body
  std::string unsent_, in_flight_;
};

}  // namespace kvasir
