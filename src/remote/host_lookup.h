// HostLookup: the addresses of a host, without waiting for them longer than the caller wants.
#pragma once

#include <sys/socket.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "kvasir/status.h"
#include "remote/remote_address.h"

namespace kvasir {

struct SocketAddress {
  sockaddr_storage bytes{};
  socklen_t size = 0;
};
using SocketAddresses = std::vector<SocketAddress>;

// Asks the system, for as long as that takes. kIoError: the host has no address.
Result<SocketAddresses> Resolve(const RemoteAddress& address);

// The system's lookup has no limit and cannot be ended, so a thread without an owner does it: it
// may outlive this object, by as long as the system looks. At most one runs at a time. One thread.
class HostLookup {
 public:
  using Resolver = std::function<Result<SocketAddresses>(const RemoteAddress&)>;

  explicit HostLookup(Resolver resolver = &Resolve) : resolver_(std::move(resolver)) {}

  // Asks `waits` at least each 10 ms; false: it gives up (kCancelled), and the next call takes what
  // the system has found by then. Errors are those of Resolve, and kExhausted: no thread.
  Result<SocketAddresses> Ask(const RemoteAddress& address, const std::function<bool()>& waits);

 private:
  struct Pending {
    Mutex mutex;
    std::condition_variable told;
    std::optional<Result<SocketAddresses>> answer KV_GUARDED_BY(mutex);
  };

  const Resolver resolver_;
  std::shared_ptr<Pending> pending_;  // what the thread has too
};

}  // namespace kvasir
