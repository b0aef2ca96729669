#include "server/server.h"

#include <fmt/format.h>
#include <malloc.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <thread>

#include "base/result.h"
#include "server/browser_rules.h"
#include "server/connection.h"
#include "server/option_check.h"
#include "server/request_memory.h"
#include "server/service.h"

namespace kvasir {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using ErrorCode = boost::system::error_code;

constexpr auto kRetryAccept = std::chrono::milliseconds(20);  // at the connection or file limit
constexpr auto kFlushTime = std::chrono::seconds(5);  // for clients to read their last bytes

// Accepts connections and answers the signals. Its handlers run on one strand.
class Server {
 public:
  Server(const ServerOptions& options, const RequestMemory& memory, Engine& engine,
         std::unique_ptr<Service> service)
      : options_(options),
        engine_(engine),
        service_(std::move(service)),
        connections_(memory.large_bodies_bytes, memory.answers_bytes),
        prepare_(memory.prepare_small_bytes, memory.prepare_large_bytes),
        strand_(asio::make_strand(io_)),
        acceptor_(strand_),
        retry_(strand_),
        flush_(strand_),
        signals_(strand_) {}

  Status Listen() {
    ErrorCode ec;
    tcp::resolver resolver(io_);
    const auto found =
        resolver.resolve(options_.host, std::to_string(options_.port),
                         tcp::resolver::passive | tcp::resolver::numeric_service, ec);
    if (ec || found.empty()) {
      return Fail(Code::kInvalidArgument, "host: cannot resolve '{}': {}", options_.host,
                  ec.message());
    }
    const tcp::endpoint endpoint = found.begin()->endpoint();
    acceptor_.open(endpoint.protocol(), ec);
    if (!ec) acceptor_.set_option(tcp::acceptor::reuse_address(true), ec);
    if (!ec) acceptor_.bind(endpoint, ec);
    if (!ec) acceptor_.listen(asio::socket_base::max_listen_connections, ec);
    if (ec) {
      return Fail(Code::kIoError,
                  "cannot listen on {} port {}: {}; choose another with --host or "
                  "--port",
                  options_.host, options_.port, ec.message());
    }
    if (IsLoopbackHost(endpoint.address().to_string())) service_->ListensOnLoopback();
    return {};
  }

  Status Run() {
    ErrorCode ec;
    signals_.add(SIGINT, ec);
    if (!ec) signals_.add(SIGTERM, ec);
    // Until it means to read the configuration again, it ends the server as the others do. Whoever
    // started it with nohup wants it to go on without a terminal.
    struct sigaction hangup = {};
    const bool ignored = sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler == SIG_IGN;
    if (!ec && !ignored) signals_.add(SIGHUP, ec);
    if (ec) return Fail(Code::kIoError, "cannot take signals: {}", ec.message());
    KV_TRY(prepare_.Start());
    asio::post(strand_, [this] {
      AwaitSignal();
      Accept();
      Tell();
    });
    // Two threads: what one of them writes holds up no other.
    std::thread second([this] { RunHandlers(); });
    RunHandlers();
    second.join();
    for (std::thread& drain : drains_) drain.join();
    if (num_signals_ > 1) return Fail(Code::kCancelled, "stopped by a second signal");
    return {};
  }

 private:
  // Whatever a library throws in a handler ends that connection, whose handler held it, not the
  // others.
  void RunHandlers() {
    for (;;) {
      try {
        io_.run();
        return;
      } catch (const std::exception& e) {
        fmt::print(stderr, "kvasir: a connection ended: {}\n", e.what());
      }
    }
  }

  void Tell() {
    ErrorCode ec;
    const tcp::endpoint endpoint = acceptor_.local_endpoint(ec);
    const std::string address = endpoint.address().is_v6()
                                    ? fmt::format("[{}]", endpoint.address().to_string())
                                    : endpoint.address().to_string();
    const std::string url = fmt::format("http://{}:{}", address, endpoint.port());
    if (options_.on_listening) return options_.on_listening(url);
    std::fprintf(stderr, "%slistening on %s\n", options_.summary.c_str(), url.c_str());
  }

  void Accept() {
    if (!acceptor_.is_open()) return;
    if (connections_.size() >= options_.max_connections) {
      connections_.CloseLongestIdle();
      return RetryAccept();
    }
    acceptor_.async_accept(asio::make_strand(io_), [this](ErrorCode ec, tcp::socket socket) {
      if (ec == asio::error::operation_aborted) return;
      if (ec) return RetryAccept();
      try {
        StartConnection(std::move(socket), *service_, options_, connections_, prepare_);
      } catch (const std::exception&) {  // no memory for it
        return RetryAccept();
      }
      Accept();
    });
  }

  void RetryAccept() {
    retry_.expires_after(kRetryAccept);
    retry_.async_wait([this](ErrorCode ec) {
      if (!ec) Accept();
    });
  }

  void AwaitSignal() {
    signals_.async_wait([this](ErrorCode ec, int) {
      if (ec) return;
      OnSignal();
      AwaitSignal();
    });
  }

  // Drain blocks, and a second call of it cancels what the first waits for: each has a thread.
  void OnSignal() {
    if (++num_signals_ > 2) return;
    service_->BeginDrain();
    if (!options_.on_listening) {
      std::fputs(num_signals_ == 1 ? "finishing what runs; interrupt again to stop at once\n"
                                   : "stopping\n",
                 stderr);
    }
    drains_.emplace_back([this] {
      engine_.Drain();
      asio::post(strand_, [this] { Flush(); });
    });
  }

  // Every generation has told its last event; its connection may still be writing.
  void Flush() {
    if (!acceptor_.is_open()) return;
    ErrorCode ignored;
    acceptor_.close(ignored);
    retry_.cancel();
    give_up_ = std::chrono::steady_clock::now() + kFlushTime;
    AwaitFlush();
  }

  void AwaitFlush() {
    connections_.FinishAll();
    if (connections_.size() == 0 || std::chrono::steady_clock::now() > give_up_) return io_.stop();
    flush_.expires_after(std::chrono::milliseconds(10));
    flush_.async_wait([this](ErrorCode ec) {
      if (!ec) AwaitFlush();
    });
  }

  const ServerOptions& options_;
  Engine& engine_;
  const std::unique_ptr<Service> service_;
  asio::io_context io_{kIoThreads};  // outlives the sockets in connections_
  ConnectionSet connections_;
  PreparePool prepare_;  // ends before what its tasks hold
  asio::strand<asio::io_context::executor_type> strand_;
  tcp::acceptor acceptor_;
  asio::steady_timer retry_, flush_;
  std::chrono::steady_clock::time_point give_up_;
  asio::signal_set signals_;
  int num_signals_ = 0;
  std::vector<std::thread> drains_;
};

}  // namespace

Status RunServer(const ServerOptions& given, Engine& engine) {
  // Freed memory goes back to the system soon, and large blocks at once: what is counted as free
  // must not stay resident.
  mallopt(M_MMAP_THRESHOLD, 256 << 10);
  mallopt(M_TRIM_THRESHOLD, 256 << 10);
  const RequestMemory memory = Divide(engine.options().request_memory_bytes, given);
  ServerOptions options = given;
  options.max_body_bytes = memory.max_body_bytes;
  options.max_connections = memory.max_connections;
  KV_TRY(CheckOptions(options));
  KV_ASSIGN(std::unique_ptr<Service> service, Service::Make(options, engine));
  Server server(options, memory, engine, std::move(service));
  KV_TRY(server.Listen());
  return server.Run();
}

}  // namespace kvasir
