// Connection: one client's HTTP/1.1 connection, its requests one after the other.
#pragma once

#include <boost/asio/ip/tcp.hpp>

#include "server/connection_set.h"
#include "server/prepare_pool.h"
#include "server/server.h"
#include "server/service.h"

namespace kvasir {

// Serves `socket`, whose executor must be a strand. All references must outlive the connection.
void StartConnection(boost::asio::ip::tcp::socket socket, Service& service,
                     const ServerOptions& options, ConnectionSet& connections,
                     PreparePool& prepare);

}  // namespace kvasir
