#include "server/server.h"

#include <fmt/format.h>
#include <malloc.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
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
#include <functional>
#include <memory>
#include <semaphore>
#include <thread>

#include "access/browser_rules.h"
#include "base/clock.h"
#include "base/descriptor.h"
#include "base/log.h"
#include "base/result.h"
#include "base/start_thread.h"
#include "base/until_done.h"
#include "http/event_loop.h"
#include "http/request_memory.h"
#include "server/connection.h"
#include "server/option_check.h"
#include "server/service.h"

namespace kvasir {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using ErrorCode = boost::system::error_code;

constexpr int kAcceptsAtOnce = 64;      // then other handlers get their turn
constexpr size_t kMaxClosing = 64;      // closing connections that still hold memory
constexpr size_t kClosedForFiles = 16;  // at once, when the system has no descriptor left
constexpr auto kRetryAccept = std::chrono::milliseconds(20);  // while all connections are busy
constexpr auto kAwaitClosing = std::chrono::milliseconds(1);
constexpr auto kSweepSessions = std::chrono::seconds(60), kAskForFile = std::chrono::seconds(1);
constexpr int kMaxDrains = 2;                 // one for each signal
constexpr uint64_t kStopS = 1;                // for the server to stop after a second signal
constexpr uint64_t kFlushNs = 5'000'000'000;  // for clients to read their last bytes

// Accepts connections and handles signals. Its handlers run on one strand.
class Server {
 public:
  Server(const ServerOptions& options, const RequestMemory& memory, Engine& engine,
         std::unique_ptr<Service> service)
      : options_(options),
        engine_(engine),
        service_(std::move(service)),
        small_quota_(memory.prepare_small_bytes),
        large_quota_(memory.prepare_large_bytes),
        connections_(memory.large_bodies_bytes, memory.answers_bytes, memory.metrics_bytes),
        strand_(asio::make_strand(io_)),
        flush_(strand_),
        drain_(strand_),
        sweep_(strand_),
        signals_(strand_) {}

  Status Listen() {
    KV_TRY(CheckEventLoop(io_));
    uint16_t port = options_.port;  // that which the system chose for the first, for all
    bool is_loopback = true;
    for (const std::string& host : options_.hosts) {
      KV_ASSIGN(const tcp::endpoint endpoint, ListenAt(host, port));
      port = endpoint.port();
      is_loopback &= IsLoopbackHost(endpoint.address().to_string());
    }
    if (is_loopback) service_->ListensOnLoopback();
    return {};
  }

  // Checks that there are descriptors for a few connections; with fewer the server could not serve.
  Status CheckFiles() {
    constexpr int kLeast = 4;
    std::vector<std::unique_ptr<Descriptor>> files;
    for (int i = 0; i < kLeast; ++i) {
      files.push_back(
          std::make_unique<Descriptor>(dup(listeners_.front()->acceptor.native_handle())));
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
    const auto work =
        asio::make_work_guard(io_);  // keeps the threads running while there is no work
    io_.restart();                   // CheckEventLoop has stopped it
    ErrorCode ec;
    signals_.add(SIGINT, ec);
    if (!ec) signals_.add(SIGTERM, ec);
    // SIGHUP reloads the keys. Without a file of keys it ends the server like the others, except
    // under nohup, where the server must continue without a terminal.
    struct sigaction hangup = {};
    const bool ignored = sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler == SIG_IGN;
    if (!ec && (!ignored || options_.keys_path)) signals_.add(SIGHUP, ec);
    if (ec) return Fail(Code::kIoError, "cannot handle signals: {}", ec.message());
    // Starts all threads before the first request, because the system may refuse one later.
    Status started = prepare_.Start();
    if (started) started = grammars_.Start();
    if (started && engine_.DiskStats()) started = disk_.Start();
    if (started) started = StartThreads();
    if (started) {
      asio::post(strand_, [this] {
        AwaitSignal();
        for (const auto& listener : listeners_) AwaitConnection(*listener);
        AwaitSweep();
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
  struct Listener {
    explicit Listener(const asio::strand<asio::io_context::executor_type>& strand)
        : acceptor(strand), retry(strand) {}
    tcp::acceptor acceptor;
    asio::steady_timer retry;
  };

  Result<tcp::endpoint> ListenAt(const std::string& host, uint16_t port) {
    ErrorCode ec;
    tcp::resolver resolver(io_);
    const auto found = resolver.resolve(
        host, std::to_string(port), tcp::resolver::passive | tcp::resolver::numeric_service, ec);
    if (ec || found.empty()) {
      return FailField(Code::kInvalidArgument, "host",
                       "cannot resolve '{}': {}; give a name or an address without port and "
                       "brackets, such as 127.0.0.1 or ::1",
                       host, ec.message());
    }
    const tcp::endpoint endpoint = found.begin()->endpoint();
    tcp::acceptor& acceptor =
        listeners_.emplace_back(std::make_unique<Listener>(strand_))->acceptor;
    acceptor.open(endpoint.protocol(), ec);
    if (!ec) acceptor.set_option(tcp::acceptor::reuse_address(true), ec);
    // Beside 0.0.0.0, :: is IPv6 alone.
    const bool is_alone = options_.hosts.size() == 1;
    if (!ec && endpoint.address().is_v6() && !is_alone) {
      acceptor.set_option(asio::ip::v6_only(true), ec);
    }
    if (!ec) acceptor.bind(endpoint, ec);
    if (!ec) acceptor.listen(asio::socket_base::max_listen_connections, ec);
    if (!ec) acceptor.non_blocking(true, ec);
    if (!ec) return acceptor.local_endpoint();
    return Fail(Code::kIoError,
                "cannot listen on {} port {}: {}; choose another with --host or "
                "--port",
                host, port, ec.message());
  }

  // Starts the second of kIoThreads, and a thread for each call of Drain, which blocks: a second
  // call cancels the requests that the first one waits for.
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

  // Handlers of connections catch their own exceptions. An exception from a library between them
  // ends its read or write; that connection then ends at its deadline.
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
    if (!IsLogged(LogLevel::kInfo)) return;
    std::string text =
        fmt::format("{}accepts  up to {} connections, bodies up to {} KiB\n", options_.summary,
                    options_.max_connections, options_.max_body_bytes >> 10);
    for (const auto& listener : listeners_) {
      ErrorCode ec;
      const tcp::endpoint endpoint = listener->acceptor.local_endpoint(ec);
      const std::string address = endpoint.address().to_string();
      text +=
          fmt::format("listening on http://{}:{}\n",
                      endpoint.address().is_v6() ? "[" + address + "]" : address, endpoint.port());
    }
    LogText(text);
  }

  void AwaitConnection(Listener& at) {
    if (!at.acceptor.is_open()) return;
    UntilDone([this, &at] {
      at.acceptor.async_wait(tcp::acceptor::wait_read, [this, &at](ErrorCode ec) {
        if (ec == asio::error::operation_aborted) return;
        ec ? Retry(at, kRetryAccept) : AcceptSome(at);
      });
    });
  }

  // Sessions end when their time is over, even if no client calls. One sweep at a time: a slow disk
  // may hold one up for longer than the time between two.
  void AwaitSweep() {
    UntilDone([this] {
      sweep_.expires_after(service_->waits_for_session_file() ? kAskForFile : kSweepSessions);
      sweep_.async_wait([this](ErrorCode ec) {
        if (ec) return;
        PreparePool& pool = engine_.DiskStats() ? disk_ : prepare_;
        pool.Run("", 0, [this](MemoryQuota&) {
          service_->SweepSessions();
          UntilDone([this] { asio::post(strand_, [this] { AwaitSweep(); }); });
        });
      });
    });
  }

  // Accepts waiting connections. When there are too many, closes those that have waited longest for
  // their clients.
  void AcceptSome(Listener& at) noexcept {
    for (int i = 0; i < kAcceptsAtOnce && at.acceptor.is_open(); ++i) {
      if (connections_.num_closing() >= kMaxClosing) return Retry(at, kAwaitClosing);
      if (connections_.num_staying() >= options_.max_connections) {
        if (!IsAnyWaiting(at)) return AwaitConnection(at);
        if (MakeRoom(1) == 0) return Retry(at, kRetryAccept);
      }
      ErrorCode ec;
      try {
        tcp::socket socket = at.acceptor.accept(asio::make_strand(io_), ec);
        if (!ec) {
          StartConnection(std::move(socket), *service_, options_, connections_, prepare_, grammars_,
                          disk_);
        }
      } catch (const std::exception&) {
        ec = asio::error::no_memory;
      }
      if (ec == asio::error::would_block) return AwaitConnection(at);
      if (ec && ec != asio::error::connection_aborted) return AwaitRoom(at);
    }
    UntilDone([this, &at] { asio::post(strand_, [this, &at] { AcceptSome(at); }); });
  }

  // Tells whether a connection waits to be accepted: room is made only for one that is there,
  // because the one that is closed may be the newest, whose request has not arrived yet.
  static bool IsAnyWaiting(Listener& at) {
    pollfd waiting{at.acceptor.native_handle(), POLLIN, 0};
    return poll(&waiting, 1, 0) != 0;
  }

  // Closes some connections, because the system has no descriptor or memory for another one.
  void AwaitRoom(Listener& at) {
    const bool closing = connections_.num_closing() > 0 || MakeRoom(kClosedForFiles) > 0;
    Retry(at, closing ? kAwaitClosing : kRetryAccept);
  }

  // Closes connections that wait for their clients, and returns how many. Only requests that have
  // not fully arrived lose their answers. Logs it at most once a second.
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

  void Retry(Listener& at, std::chrono::milliseconds after) {
    UntilDone([this, &at, after] {
      at.retry.expires_after(after);
      at.retry.async_wait([this, &at](ErrorCode ec) {
        if (!ec) AcceptSome(at);
      });
    });
  }

  void AwaitSignal() {
    UntilDone([this] {
      signals_.async_wait([this](ErrorCode ec, int signal) {
        if (ec) return;
        const bool reload = signal == SIGHUP && options_.keys_path;
        reload ? ReloadKeys() : OnSignal();
        AwaitSignal();
      });
    });
  }

  void ReloadKeys() {
    const Status reloaded = service_->ReloadKeys();
    if (!reloaded) {
      return Log(LogLevel::kError, "the keys were not reloaded; the old ones stay",
                 LogField("reason", reloaded.error().text()));
    }
    connections_.CheckKeys();
    Log(LogLevel::kInfo, "the keys were reloaded", LogField("file", *options_.keys_path));
  }

  void OnSignal() {
    if (++num_signals_ > kMaxDrains) return;
    service_->EndReadiness();
    Log(LogLevel::kInfo, num_signals_ == 1
                             ? "finishing running requests; a second signal stops at once"
                             : "stopping");
    if (num_signals_ > 1) {
      Drain();
      if (options_.on_overdue) After(kStopS, options_.on_overdue);  // such as by a long step
      return;
    }
    After(options_.drain_delay_s, [this] { Drain(); });
  }

  // The first call waits for what runs, for a time; the second one cancels it.
  void Drain() {
    if (num_drains_ == kMaxDrains) return;
    service_->BeginDrain();
    signals_taken_.release();
    if (++num_drains_ == 1 && num_signals_ > 1) {  // a second signal came during the delay
      ++num_drains_;
      signals_taken_.release();
    }
    if (num_drains_ > 1 || options_.drain_timeout_s == 0) return;
    After(options_.drain_timeout_s, [this] {
      Log(LogLevel::kWarning, "what still runs is cancelled: --drain-timeout-s has passed");
      Drain();
    });
  }

  void After(uint64_t seconds, std::function<void()> then) {
    UntilDone([&] {
      drain_.expires_after(std::chrono::seconds(seconds));
      drain_.async_wait([then](ErrorCode ec) {
        if (!ec) then();
      });
    });
  }

  void DrainWhenTold() noexcept {
    signals_taken_.acquire();
    if (io_.stopped()) return;
    engine_.Drain();
    UntilDone([this] { asio::post(strand_, [this] { Flush(); }); });
  }

  // Waits for connections that still write; all generations have had their last event.
  void Flush() {
    if (!listeners_.front()->acceptor.is_open()) return;
    for (const auto& listener : listeners_) {
      ErrorCode ignored;
      listener->acceptor.close(ignored);
      listener->retry.cancel();
    }
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
  // Must outlive io_: its connections return their shares when it is destroyed.
  MemoryQuota small_quota_, large_quota_;
  asio::io_context io_{kIoThreads};  // must outlive the sockets in connections_
  ConnectionSet connections_;
  PreparePool prepare_{small_quota_, large_quota_};
  PreparePool grammars_{small_quota_, large_quota_};  // compiles formats
  PreparePool disk_{small_quota_, large_quota_};      // started where sessions may be on the disk
  asio::strand<asio::io_context::executor_type> strand_;
  std::vector<std::unique_ptr<Listener>> listeners_;  // at least one, once it listens
  asio::steady_timer flush_, drain_, sweep_;
  uint64_t give_up_ns_ = 0, tell_room_at_ns_ = 0;
  size_t closed_for_room_ = 0;  // since the last log line about it
  asio::signal_set signals_;
  int num_signals_ = 0, num_drains_ = 0;
  std::counting_semaphore<2 * kMaxDrains> signals_taken_{0};
  std::vector<std::thread> threads_;
};

// Returns how many connections the limit of open files allows, beside other open files.
uint32_t ConnectionsForFiles() {
  constexpr rlim_t kOthers = 24;  // standard streams, event loop, signals, a file that is read
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur == RLIM_INFINITY) return UINT32_MAX;
  const rlim_t most =
      std::max(files.rlim_cur / 2, files.rlim_cur - std::min(files.rlim_cur, kOthers));
  return static_cast<uint32_t>(std::clamp<rlim_t>(most, 1, UINT32_MAX));
}

}  // namespace

Status RunServer(const ServerOptions& given, Engine& engine) {
  // Returns freed memory to the system soon, and large blocks at once: memory that counts as free
  // must not stay resident.
  mallopt(M_MMAP_THRESHOLD, 256 << 10);
  mallopt(M_TRIM_THRESHOLD, 256 << 10);
  static_assert(kWaitingShare == 20);  // the twentieth that Divide leaves
  const RequestMemory memory =
      Divide(engine.options().request_memory_bytes, given.max_body_bytes, given.max_connections);
  ServerOptions options = given;
  options.max_body_bytes = memory.max_body_bytes;
  options.max_connections = std::min(memory.max_connections, ConnectionsForFiles());
  KV_ASSIGN(std::unique_ptr<Service> service, Service::Make(options, engine));
  try {
    Server server(options, memory, engine, std::move(service));
    KV_TRY(server.Listen());
    KV_TRY(server.CheckFiles());
    return server.Run();
  } catch (const boost::system::system_error& e) {  // from the event loop's descriptors
    return Fail(Code::kIoError,
                "server: the system refuses an event loop: {}; if too many files are open, raise "
                "their limit (ulimit -n)",
                e.code().message());
  }
}

}  // namespace kvasir
