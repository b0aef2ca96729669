// SocketPair: both ends of a connection inside this machine, for tests of the server.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/address_v4.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <string>
#include <string_view>

namespace kvasir {

struct SocketPair {
  using Socket = boost::asio::ip::tcp::socket;

  SocketPair(const boost::asio::any_io_executor& of_server,
             const boost::asio::any_io_executor& of_client)
      : server(of_server), client(of_client) {
    using boost::asio::ip::tcp;
    tcp::acceptor acceptor(of_client, {boost::asio::ip::address_v4::loopback(), 0});
    client.connect(acceptor.local_endpoint());
    acceptor.accept(server);
  }

  void Send(std::string_view text) {
    boost::asio::write(client, boost::asio::buffer(text.data(), text.size()));
  }
  void EndSending() { client.shutdown(Socket::shutdown_send); }

  // Waits at most `wait_ms`; whether there is something to read, or the end.
  bool Readable(int wait_ms) {
    pollfd wanted = {client.native_handle(), POLLIN, 0};
    return ::poll(&wanted, 1, wait_ms) == 1;
  }
  // Reads `bytes` bytes as the client, or less up to the end.
  std::string Receive(size_t bytes) {
    constexpr int kWaitMs = 60000;
    std::string received;
    while (received.size() < bytes) {
      char part[1 << 12];
      const size_t wanted = std::min(sizeof(part), bytes - received.size());
      if (!Readable(kWaitMs)) {
        ADD_FAILURE() << "nothing comes after " << received.size() << " bytes";
        break;
      }
      const ssize_t got = ::recv(client.native_handle(), part, wanted, 0);
      if (got <= 0) break;
      received.append(part, static_cast<size_t>(got));
    }
    return received;
  }
  std::string ReceiveAll() { return Receive(std::string::npos); }

  Socket server, client;
};

}  // namespace kvasir
