// ByteStream: the bytes of one connection, on their way through TLS or as they are.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/system/error_code.hpp>
#include <cstddef>
#include <functional>

namespace kvasir {

// At most one read and one write are pending at a time. A call with `done` returns before `done` is
// called, which must keep the stream and its socket alive. Closing or cancelling the socket ends
// what is pending. One strand.
class ByteStream {
 public:
  using ErrorCode = boost::system::error_code;
  using Done = std::function<void(ErrorCode error, size_t bytes)>;

  virtual ~ByteStream() = default;

  // Reads what has come, at least one byte. asio::error::eof: the client sends nothing more.
  virtual void ReadSome(boost::asio::mutable_buffer to, Done done) = 0;
  // Writes all of it.
  virtual void Write(boost::asio::const_buffer from, Done done) = 0;
  virtual boost::asio::any_io_executor executor() = 0;
};

}  // namespace kvasir
