// ResponseWriter: from answers to the bytes of one connection.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/system/error_code.hpp>
#include <cstdint>
#include <functional>
#include <string>

#include "server/errors.h"
#include "server/parts.h"

namespace kvasir {

// Frames answers as HTTP has them and sends them, one write at a time; what is put meanwhile waits.
// A head is that of HeadText (http_text.h), without the headers of the body's framing. One strand.
class ResponseWriter {
 public:
  using Done = std::function<void(boost::system::error_code)>;

  explicit ResponseWriter(boost::asio::ip::tcp::socket& socket)  // must outlive the writer
      : socket_(socket) {}

  // The answers that follow are to a request in HTTP/1.1 (else 1.0), to HEAD or not.
  void SetRequest(bool http11, bool is_head) {
    http11_ = http11;
    is_head_ = is_head;
  }
  // Whether a client can tell the end of a body whose length is not known; else the connection's
  // end is that of the body.
  bool frames() const { return http11_; }

  // Makes the beginning of a body that comes in parts; a short one whole, which then has no parts.
  static void Gather(HttpResponse* response);

  // A gathered answer. Its parts are made as they are sent; to HEAD none are.
  void Put(std::string head, HttpResponse response);
  // A stream of events: its head once, its texts, its end.
  void PutStreamHead(const std::string& head);
  void PutStreamText(const std::string& text);
  void PutStreamEnd();

  // Writes what was put. `done`, called after the call returns, must keep the writer and its socket
  // alive. REQUIRES: !writing().
  void Write(Done done);
  bool writing() const { return writing_; }
  // Whether there is more to write, and makes the next part if that is what comes.
  bool Advance();
  // Whether the end of the answer was put; NextAnswer forgets it.
  bool ended() const { return ended_; }
  bool all_in_flight() const { return ended_ && unsent_.empty(); }
  void NextAnswer() { ended_ = false; }
  // No more parts are made.
  void DropParts() { parts_ = Parts(); }

  // Memory of what was put and is not sent, parts to come apart.
  uint64_t held_bytes() const { return unsent_.capacity() + in_flight_.capacity(); }

 private:
  boost::asio::ip::tcp::socket& socket_;
  bool http11_ = true, is_head_ = false;
  bool writing_ = false;
  bool ended_ = false;  // all of the answer is in unsent_ or in_flight_
  Parts parts_;         // of the body that is being sent
  std::string unsent_, in_flight_;
};

}  // namespace kvasir
