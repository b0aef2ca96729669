#include "remote/host_lookup.h"

#include <netdb.h>

#include <chrono>
#include <cstring>
#include <string>
#include <utility>

#include "base/result.h"
#include "base/start_thread.h"

namespace kvasir {
namespace {

Result<SocketAddresses> LookUp(const RemoteAddress& address, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  if (error != 0) {
    return Fail(Code::kIoError, "no address of {}: {}", address.host, gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> list(found, &freeaddrinfo);
  SocketAddresses addresses;
  for (const addrinfo* one = list.get(); one != nullptr; one = one->ai_next) {
    SocketAddress& made = addresses.emplace_back();
    std::memcpy(&made.bytes, one->ai_addr, one->ai_addrlen);
    made.size = one->ai_addrlen;
  }
  return addresses;
}

}  // namespace

Result<SocketAddresses> Resolve(const RemoteAddress& address) { return LookUp(address, 0); }

Result<SocketAddresses> HostLookup::Ask(const RemoteAddress& address,
                                        const std::function<bool()>& waits) {
  if (auto numbers = LookUp(address, AI_NUMERICHOST)) return numbers;
  if (!pending_) {
    const auto pending = std::make_shared<Pending>();
    KV_ASSIGN(std::thread thread,
              StartThread("remote tier", [pending, address, resolver = resolver_] {
                auto answer = resolver(address);
                MutexLock lock(pending->mutex);
                pending->answer = std::move(answer);
                pending->told.notify_all();
              }));
    thread.detach();
    pending_ = pending;
  }
  const std::shared_ptr<Pending> pending = pending_;
  MutexLock lock(pending->mutex);
  while (!pending->answer) {
    if (!waits()) {
      return Fail(Code::kCancelled, "the system takes too long to find {}", address.host);
    }
    lock.WaitFor(pending->told, std::chrono::milliseconds(10));
  }
  pending_.reset();
  return std::move(*pending->answer);
}

}  // namespace kvasir
