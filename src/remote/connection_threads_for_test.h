// ConnectionThreads: the connections of a fake server of a test.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cstdint>
#include <functional>
#include <list>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/descriptor.h"
#include "base/mutex.h"

namespace kvasir {

// Listens on a port of 127.0.0.1 and calls `serve` in a thread for each connection. It ends with
// the object. REQUIRES: it is the fake's last member, since its threads use the others.
class ConnectionThreads {
 public:
  using Serve = std::function<void(int fd)>;

  explicit ConnectionThreads(Serve serve) : serve_(std::move(serve)) {
    listener_ = Descriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in here{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof(here);
    KV_CHECK(bind(listener_.fd(), reinterpret_cast<sockaddr*>(&here), size) == 0);
    KV_CHECK(getsockname(listener_.fd(), reinterpret_cast<sockaddr*>(&here), &size) == 0);
    KV_CHECK(listen(listener_.fd(), 64) == 0);
    port_ = ntohs(here.sin_port);
    accepting_ = std::thread([this] { Accept(); });
  }
  ~ConnectionThreads() {
    shutdown(listener_.fd(), SHUT_RDWR);
    accepting_.join();
    HangUp();
    for (std::thread& thread : threads_) thread.join();
  }

  uint16_t port() const { return port_; }
  size_t num_accepted() {
    MutexLock lock(mutex_);
    return sockets_.size();
  }
  // Closes all connections.
  void HangUp() {
    MutexLock lock(mutex_);
    for (const Descriptor& one : sockets_) shutdown(one.fd(), SHUT_RDWR);
  }

  // Appends the next bytes of a connection. False: it ended.
  static bool Receive(int fd, std::string* bytes) {
    char some[65536];
    const ssize_t got = recv(fd, some, sizeof(some), 0);
    if (got > 0) bytes->append(some, static_cast<size_t>(got));
    return got > 0;
  }
  // Sends all bytes. False: the connection ended.
  static bool Send(int fd, std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }

 private:
  void Accept() {
    for (;;) {
      Descriptor one(accept(listener_.fd(), nullptr, nullptr));
      if (!one) return;
      const int fd = one.fd();
      // As Redis does. Else the second reply of a pipeline comes 40 ms later, which is as long as a
      // request waits for a lookup.
      const int on = 1;
      setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
      MutexLock lock(mutex_);
      sockets_.push_back(std::move(one));
      threads_.emplace_back([this, fd] {
        serve_(fd);
        shutdown(fd, SHUT_RDWR);
      });
    }
  }

  const Serve serve_;
  Descriptor listener_;
  uint16_t port_ = 0;
  Mutex mutex_;
  std::list<Descriptor> sockets_ KV_GUARDED_BY(mutex_);
  std::list<std::thread> threads_;  // of accepting_, and of the destructor after it
  std::thread accepting_;
};

}  // namespace kvasir
