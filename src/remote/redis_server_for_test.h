// RedisServer: a real redis-server for a test, on a free port of this machine.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/descriptor.h"
#include "base/needs_for_test.h"
#include "base/result.h"
#include "remote/redis_connection.h"

extern char** environ;

namespace kvasir {

// Keeps nothing on the disk. Ends with the object.
class RedisServer {
 public:
  // A word of Start's flags for which a free port stands; ports() has them in this order.
  static constexpr const char* kPort = "PORT";

  // nullptr: redis-server is not installed, or does not start.
  static std::unique_ptr<RedisServer> Start(const std::vector<std::string>& more = {}) {
    for (int i = 0; i < 5; ++i) {  // another program may take a port that was free
      std::unique_ptr<RedisServer> one(new RedisServer(more));
      if (one->pid_ > 0 && one->WaitUntilUp()) return one;
    }
    return nullptr;
  }
  ~RedisServer() { Stop(); }

  RemoteAddress address() const { return {.host = "127.0.0.1", .port = port_, .user = {}}; }
  void Signal(int signal) { kill(pid_, signal); }  // SIGSTOP, SIGCONT
  void Stop() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  // Starts it again, empty, where it was stopped.
  bool Restart() {
    Spawn();
    return pid_ > 0 && WaitUntilUp();
  }
  // Sends one command, by a connection that is kept, and returns its reply.
  Result<RedisReply> Ask(std::initializer_list<std::string_view> words,
                         std::span<std::byte> bulk = {}) {
    const RedisConnection::Waits waits = [this] { return IsRunning(); };
    if (!connection_.is_open()) {
      KV_ASSIGN(const SocketAddresses at, Resolve(address()));
      KV_TRY(connection_.Open(address(), at, "", waits));
    }
    return connection_.Ask(words, bulk, waits);
  }
  RedisConnection& connection() { return connection_; }
  const std::vector<uint16_t>& ports() const { return ports_; }

 private:
  static uint16_t FreePort() {
    const Descriptor fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in here{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof(here);
    if (bind(fd.fd(), reinterpret_cast<sockaddr*>(&here), size) != 0) return 0;
    getsockname(fd.fd(), reinterpret_cast<sockaddr*>(&here), &size);
    return ntohs(here.sin_port);
  }

  explicit RedisServer(std::vector<std::string> more) : more_(std::move(more)) {
    for (std::string& word : more_) {
      if (word == kPort) word = std::to_string(ports_.emplace_back(FreePort()));
    }
    Spawn();
  }
  void Spawn() {
    std::vector<std::string> words = {"redis-server",
                                      "--port",
                                      std::to_string(port_),
                                      "--bind",
                                      "127.0.0.1",
                                      "--save",
                                      "",
                                      "--appendonly",
                                      "no",
                                      "--dir",
                                      "/tmp",
                                      "--logfile",
                                      "/dev/null"};
    words.insert(words.end(), more_.begin(), more_.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    if (posix_spawnp(&pid_, "redis-server", nullptr, nullptr, argv.data(), environ) != 0) pid_ = 0;
  }
  bool IsRunning() {
    if (pid_ > 0 && waitpid(pid_, nullptr, WNOHANG) != 0) pid_ = 0;
    return pid_ > 0;
  }
  bool WaitUntilUp() {
    for (int i = 0; i < 1000 && IsRunning(); ++i) {
      connection_.Close();
      if (Ask({"PING"})) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

  const uint16_t port_ = FreePort();
  std::vector<uint16_t> ports_;
  std::vector<std::string> more_;
  pid_t pid_ = 0;
  RedisConnection connection_;
};

}  // namespace kvasir
