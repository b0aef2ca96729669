// Connection: the HTTP/1.1 connection of one client; it serves one request after the other.
#pragma once

#include <boost/asio/ip/tcp.hpp>

#include "server/exchange.h"

namespace kvasir {

// Serves `socket`, whose executor must be a strand.
void StartConnection(boost::asio::ip::tcp::socket socket, const ConnectionParts& parts);

}  // namespace kvasir
