// Connection: one client's HTTP/1.1 connection, its requests one after the other.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "server/server.h"
#include "server/service.h"

namespace kvasir {

// What the server holds of a connection. It keeps itself in the set from Start to its end.
class ConnectionHandle {
 public:
  virtual ~ConnectionHandle() = default;
  // Ends the connection, after the answer it is writing if there is one. Any thread.
  virtual void Finish() = 0;
};

// The connections that are open. Thread-safe.
class ConnectionSet {
 public:
  void Add(std::shared_ptr<ConnectionHandle> connection);
  void Remove(const ConnectionHandle* connection);
  size_t size() const;
  void FinishAll();

 private:
  mutable std::mutex mutex_;
  std::unordered_map<const ConnectionHandle*, std::shared_ptr<ConnectionHandle>> open_;
};

// Serves `socket`, whose executor must be a strand. All references must outlive the connection.
void StartConnection(boost::asio::ip::tcp::socket socket, Service& service,
                     const ServerOptions& options, ConnectionSet& connections);

}  // namespace kvasir
