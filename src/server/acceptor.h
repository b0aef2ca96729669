// Acceptor: the addresses that a server listens on, and the connections that come there.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "server/exchange.h"

namespace kvasir {

// States: made -> listening -> accepting -> closed. Keeps as many connections as the options allow:
// for one more it closes those that have waited longest for their clients. One strand, after Start.
class Acceptor {
 public:
  using Strand = boost::asio::strand<boost::asio::io_context::executor_type>;

  // `io` and `parts` must outlive it; `strand` is one of `io`.
  Acceptor(boost::asio::io_context& io, const Strand& strand, const ConnectionParts& parts)
      : io_(io), strand_(strand), parts_(parts) {}

  // Listens on each of ServerOptions::hosts, with one port for all. kInvalidArgument: a host that
  // has no address; kIoError: an address that cannot be used. O(hosts).
  Status Listen();
  // Checks that there are descriptors for a few connections: with fewer the server could not serve.
  // kIoError: there are not. REQUIRES: it listens.
  Status CheckFiles() const;
  // Tells whether only this machine can connect. REQUIRES: it listens.
  bool IsLoopback() const;

  // Begins to accept, on the strand.
  void Start();
  // Returns "listening on http://127.0.0.1:8080\n", a line for each address.
  std::string Lines() const;
  // Stops listening; the connections stay.
  void Close();
  bool is_open() const { return listeners_.front()->acceptor.is_open(); }

 private:
  struct Listener {
    explicit Listener(const Strand& strand) : acceptor(strand), retry(strand) {}
    boost::asio::ip::tcp::acceptor acceptor;
    boost::asio::steady_timer retry;
  };

  Result<uint16_t> ListenAt(const std::string& host, uint16_t port);
  void AwaitConnection(Listener& at);
  void AcceptSome(Listener& at) noexcept;
  void AwaitRoom(Listener& at);
  size_t MakeRoom(size_t count) noexcept;
  void Retry(Listener& at, std::chrono::milliseconds after);

  boost::asio::io_context& io_;
  const Strand strand_;
  const ConnectionParts& parts_;
  std::vector<std::unique_ptr<Listener>> listeners_;  // at least one, once it listens
  size_t closed_for_room_ = 0;                        // since the last log line about it
  uint64_t tell_room_at_ns_ = 0;
};

}  // namespace kvasir
