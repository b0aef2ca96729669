#include "http/plain_stream.h"

#include <boost/asio/write.hpp>
#include <utility>

namespace kvasir {

void PlainStream::ReadSome(boost::asio::mutable_buffer to, Done done) {
  socket_.async_read_some(to, std::move(done));
}

void PlainStream::Write(boost::asio::const_buffer from, Done done) {
  boost::asio::async_write(socket_, from, std::move(done));
}

}  // namespace kvasir
