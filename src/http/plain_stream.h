// PlainStream: a socket as a ByteStream.
#pragma once

#include <boost/asio/ip/tcp.hpp>

#include "http/byte_stream.h"

namespace kvasir {

class PlainStream final : public ByteStream {
 public:
  explicit PlainStream(boost::asio::ip::tcp::socket& socket)  // must outlive the stream
      : socket_(socket) {}

  void ReadSome(boost::asio::mutable_buffer to, Done done) override;
  void Write(boost::asio::const_buffer from, Done done) override;
  boost::asio::any_io_executor executor() override { return socket_.get_executor(); }

 private:
  boost::asio::ip::tcp::socket& socket_;
};

}  // namespace kvasir
