// Connection: the HTTP/1.1 connection of one client; it serves one request after the other.
#pragma once

#include <boost/asio/ip/tcp.hpp>

#include "http/connection_set.h"
#include "server/prepare_pool.h"
#include "server/server.h"
#include "server/service.h"

namespace kvasir {

// Serves `socket`, whose executor must be a strand. All references must outlive the connection.
// `disk` runs what waits for a disk.
void StartConnection(boost::asio::ip::tcp::socket socket, Service& service,
                     const ServerOptions& options, ConnectionSet& connections, PreparePool& prepare,
                     PreparePool& grammars, PreparePool& disk);

}  // namespace kvasir
