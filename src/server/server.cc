#include "server/server.h"

#include <fmt/format.h>
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/system/system_error.hpp>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <exception>
#include <memory>
#include <semaphore>
#include <thread>

#include "base/clock.h"
#include "base/descriptor.h"
#include "base/log.h"
#include "base/result.h"
#include "base/start_thread.h"
#include "base/until_done.h"
#include "server/browser_rules.h"
#include "server/connection.h"
#include "server/event_loop.h"
#include "server/option_check.h"
#include "server/request_memory.h"
#include "server/service.h"

namespace kvasir {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using ErrorCode = boost::system::error_code;

constexpr int kAcceptsAtOnce = 64;      // then other handlers run
constexpr size_t kMaxClosing = 64;      // connections that were told to go and hold memory still
constexpr size_t kClosedForFiles = 16;  // at once, when the system has no descriptor left
constexpr auto kRetryAccept = std::chrono::milliseconds(20);  // all are busy: until one is not
constexpr auto kAwaitClosing = std::chrono::milliseconds(1);
constexpr int kMaxDrains = 2;                 // a signal each
constexpr uint64_t kFlushNs = 5'000'000'000;  // for clients to read their last bytes

// Accepts connections and answers the signals. Its handlers run on one strand.
class Server {
 public:
  Server(const ServerOptions& options, const RequestMemory& memory, Engine& engine,
         std::unique_ptr<Service> service)
      : options_(options),
        engine_(engine),
        service_(std::move(service)),
        small_quota_(memory.prepare_small_bytes),
        large_quota_(memory.prepare_large_bytes),
        connections_(memory.large_bodies_bytes, memory.answers_bytes),
        strand_(asio::make_strand(io_)),
        acceptor_(strand_),
        retry_(strand_),
        flush_(strand_),
        signals_(strand_) {}

  Status Listen() {
    KV_TRY(CheckEventLoop(io_));
    ErrorCode ec;
    tcp::resolver resolver(io_);
    const auto found =
        resolver.resolve(options_.host, std::to_string(options_.port),
                         tcp::resolver::passive | tcp::resolver::numeric_service, ec);
    if (ec || found.empty()) {
      return FailField(Code::kInvalidArgument, "host",
                       "cannot resolve '{}': {}; give a name or an address without port and "
                       "brackets, such as 127.0.0.1 or ::1",
                       options_.host, ec.message());
    }
    const tcp::endpoint endpoint = found.begin()->endpoint();
    acceptor_.open(endpoint.protocol(), ec);
    if (!ec) acceptor_.set_option(tcp::acceptor::reuse_address(true), ec);
    if (!ec) acceptor_.bind(endpoint, ec);
    if (!ec) acceptor_.listen(asio::socket_base::max_listen_connections, ec);
    if (!ec) acceptor_.non_blocking(true, ec);
    if (ec) {
      return Fail(Code::kIoError,
                  "cannot listen on {} port {}: {}; choose another with --host or "
                  "--port",
                  options_.host, options_.port, ec.message());
    }
    if (IsLoopbackHost(endpoint.address().to_string())) service_->ListensOnLoopback();
    return {};
  }

  // Whether there are descriptors for a few connections: with fewer nobody could be served.
  Status CheckFiles() {
    constexpr int kLeast = 4;
    std::vector<std::unique_ptr<Descriptor>> files;
    for (int i = 0; i < kLeast; ++i) {
      files.push_back(std::make_unique<Descriptor>(dup(acceptor_.native_handle())));
      if (!*files.back()) {
        return Fail(
            Code::kIoError,
            "server: only {} more files can be opened, and connections need at least {}: {}; "
            "raise the limit of open files (ulimit -n)",
            i, kLeast, std::strerror(errno));
      }
    }
    return {};
  }

  Status Run() {
    const auto work = asio::make_work_guard(io_);  // the threads start before there is any
    io_.restart();                                 // CheckEventLoop left it without
    ErrorCode ec;
    signals_.add(SIGINT, ec);
    if (!ec) signals_.add(SIGTERM, ec);
    // Until it means to read the configuration again, it ends the server as the others do. Whoever
    // started it with nohup wants it to go on without a terminal.
    struct sigaction hangup = {};
    const bool ignored = sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler == SIG_IGN;
    if (!ec && !ignored) signals_.add(SIGHUP, ec);
    if (ec) return Fail(Code::kIoError, "cannot handle signals: {}", ec.message());
    // All threads are there before the first request: later the system may refuse one.
    Status started = prepare_.Start();
    if (started) started = StartThreads();
    if (started) {
      asio::post(strand_, [this] {
        AwaitSignal();
        AwaitConnection();
        Tell();
      });
      RunHandlers();
    }
    io_.stop();
    signals_taken_.release(kMaxDrains);
    for (std::thread& thread : threads_) thread.join();
    KV_TRY(started);
    if (num_signals_ > 1) return Fail(Code::kCancelled, "stopped by a second signal");
    return {};
  }

 private:
  // The second of kIoThreads; and one for each call of Drain, which blocks: a second call cancels
  // what the first one waits for.
  Status StartThreads() {
    const auto start = [this](auto body) -> Status {
      KV_ASSIGN(std::thread thread, StartThread("server", body));
      threads_.push_back(std::move(thread));
      return {};
    };
    threads_.reserve(kIoThreads - 1 + kMaxDrains);
    for (uint32_t i = 1; i < kIoThreads; ++i) KV_TRY(start([this] { RunHandlers(); }));
    for (int i = 0; i < kMaxDrains; ++i) KV_TRY(start([this] { DrainWhenTold(); }));
    return {};
  }

  // Handlers of connections keep what they throw to themselves. What a library throws between them
  // ends the read or write that it is about; that connection then ends at its deadline.
  void RunHandlers() noexcept {
    for (;;) {
      try {
        io_.run();
        return;
      } catch (const std::exception& e) {
        Log(LogLevel::kError, "a connection ended", LogField("reason", e.what()));
      } catch (...) {
        Log(LogLevel::kError, "a connection ended", LogField("reason", "unknown error"));
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
    if (!IsLogged(LogLevel::kInfo)) return;
    LogText(fmt::format("{}accepts  up to {} connections, bodies up to {} KiB\nlistening on {}\n",
                        options_.summary, options_.max_connections, options_.max_body_bytes >> 10,
                        url));
  }

  void AwaitConnection() {
    if (!acceptor_.is_open()) return;
    UntilDone([this] {
      acceptor_.async_wait(tcp::acceptor::wait_read, [this](ErrorCode ec) {
        if (ec == asio::error::operation_aborted) return;
        ec ? Retry(kRetryAccept) : AcceptSome();
      });
    });
  }

  // Takes those who wait. The newcomer comes in; who has waited for its client longest goes.
  void AcceptSome() noexcept {
    for (int i = 0; i < kAcceptsAtOnce && acceptor_.is_open(); ++i) {
      if (connections_.num_closing() >= kMaxClosing) return Retry(kAwaitClosing);
      if (connections_.num_staying() >= options_.max_connections && MakeRoom(1) == 0) {
        return Retry(kRetryAccept);
      }
      ErrorCode ec;
      try {
        tcp::socket socket = acceptor_.accept(asio::make_strand(io_), ec);
        if (!ec) {
          StartConnection(std::move(socket), *service_, options_, connections_, prepare_);
        }
      } catch (const std::exception&) {
        ec = asio::error::no_memory;
      }
      if (ec == asio::error::would_block) return AwaitConnection();
      if (ec && ec != asio::error::connection_aborted) return AwaitRoom();
    }
    UntilDone([this] { asio::post(strand_, [this] { AcceptSome(); }); });
  }

  // The system has no descriptor or no memory for another connection: some of ours go.
  void AwaitRoom() {
    const bool closing = connections_.num_closing() > 0 || MakeRoom(kClosedForFiles) > 0;
    Retry(closing ? kAwaitClosing : kRetryAccept);
  }

  // How many connections go. They were waiting for their clients: no answer is lost but those of
  // requests that were still on their way. The log says so once a second at most.
  size_t MakeRoom(size_t count) noexcept {
    try {
      const size_t closed = connections_.MakeRoom(count);
      closed_for_room_ += closed;
      const uint64_t now_ns = MonotonicNs();
      if (closed_for_room_ == 0 || now_ns < tell_room_at_ns_) return closed;
      Log(LogLevel::kWarning,
          "connections were closed to make room; to keep more at once, raise --request-memory or "
          "the limit of open files",
          LogField("closed", std::exchange(closed_for_room_, 0)),
          LogField("kept", options_.max_connections));
      tell_room_at_ns_ = now_ns + 1'000'000'000;
      return closed;
    } catch (...) {
      return 0;
    }
  }

  void Retry(std::chrono::milliseconds after) {
    UntilDone([this, after] {
      retry_.expires_after(after);
      retry_.async_wait([this](ErrorCode ec) {
        if (!ec) AcceptSome();
      });
    });
  }

  void AwaitSignal() {
    UntilDone([this] {
      signals_.async_wait([this](ErrorCode ec, int) {
        if (ec) return;
        OnSignal();
        AwaitSignal();
      });
    });
  }

  void OnSignal() {
    if (++num_signals_ > kMaxDrains) return;
    service_->BeginDrain();
    if (!options_.on_listening) {
      Log(LogLevel::kInfo, num_signals_ == 1
                               ? "finishing running requests; a second signal stops at once"
                               : "stopping");
    }
    signals_taken_.release();
  }

  void DrainWhenTold() noexcept {
    signals_taken_.acquire();
    if (io_.stopped()) return;
    engine_.Drain();
    UntilDone([this] { asio::post(strand_, [this] { Flush(); }); });
  }

  // Every generation has told its last event; its connection may still be writing.
  void Flush() {
    if (!acceptor_.is_open()) return;
    ErrorCode ignored;
    acceptor_.close(ignored);
    retry_.cancel();
    give_up_ns_ = MonotonicNs() + kFlushNs;
    AwaitFlush();
  }

  void AwaitFlush() {
    connections_.FinishAll();
    if (connections_.size() == 0 || MonotonicNs() > give_up_ns_) return io_.stop();
    UntilDone([this] {
      flush_.expires_after(std::chrono::milliseconds(10));
      flush_.async_wait([this](ErrorCode ec) {
        if (!ec) AwaitFlush();
      });
    });
  }

  const ServerOptions& options_;
  Engine& engine_;
  const std::unique_ptr<Service> service_;
  // Connections that end with io_ give back their shares.
  MemoryQuota small_quota_, large_quota_;
  asio::io_context io_{kIoThreads};  // outlives the sockets in connections_
  ConnectionSet connections_;
  PreparePool prepare_{small_quota_, large_quota_};
  asio::strand<asio::io_context::executor_type> strand_;
  tcp::acceptor acceptor_;
  asio::steady_timer retry_, flush_;
  uint64_t give_up_ns_ = 0, tell_room_at_ns_ = 0;
  size_t closed_for_room_ = 0;  // since the log said so
  asio::signal_set signals_;
  int num_signals_ = 0;
  std::counting_semaphore<2 * kMaxDrains> signals_taken_{0};
  std::vector<std::thread> threads_;
};

// Connections that the limit of open files has room for, beside what else is open.
uint32_t ConnectionsForFiles() {
  constexpr rlim_t kOthers =
      24;  // the standard ones, the event loop's, signals', a file that is read
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur == RLIM_INFINITY) return UINT32_MAX;
  const rlim_t most =
      std::max(files.rlim_cur / 2, files.rlim_cur - std::min(files.rlim_cur, kOthers));
  return static_cast<uint32_t>(std::clamp<rlim_t>(most, 1, UINT32_MAX));
}

}  // namespace

Status RunServer(const ServerOptions& given, Engine& engine) {
  // Freed memory goes back to the system soon, and large blocks at once: what is counted as free
  // must not stay resident.
  mallopt(M_MMAP_THRESHOLD, 256 << 10);
  mallopt(M_TRIM_THRESHOLD, 256 << 10);
  const RequestMemory memory = Divide(engine.options().request_memory_bytes, given);
  ServerOptions options = given;
  options.max_body_bytes = memory.max_body_bytes;
  options.max_connections = std::min(memory.max_connections, ConnectionsForFiles());
  KV_ASSIGN(std::unique_ptr<Service> service, Service::Make(options, engine));
  try {
    Server server(options, memory, engine, std::move(service));
    KV_TRY(server.Listen());
    KV_TRY(server.CheckFiles());
    return server.Run();
  } catch (const boost::system::system_error& e) {  // of the event loop: its descriptors
    return Fail(Code::kIoError,
                "server: the system refuses an event loop: {}; if too many files are open, raise "
                "their limit (ulimit -n)",
                e.code().message());
  }
}

}  // namespace kvasir
