#include "server/server.h"

#include <fmt/format.h>
#include <malloc.h>
#include <sys/resource.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/system/system_error.hpp>
#include <chrono>
#include <csignal>
#include <exception>
#include <memory>
#include <thread>

#include "base/clock.h"
#include "base/log.h"
#include "base/result.h"
#include "base/service_notify.h"
#include "base/sizes.h"
#include "base/start_thread.h"
#include "base/until_done.h"
#include "base/wipe_stack.h"
#include "http/event_loop.h"
#include "http/request_memory.h"
#include "server/acceptor.h"
#include "server/option_check.h"
#include "server/service.h"
#include "server/shutdown.h"
#include "server/watchdog.h"

namespace kvasir {
namespace {

namespace asio = boost::asio;
using ErrorCode = boost::system::error_code;

constexpr auto kSweepSessions = std::chrono::seconds(60), kAskForFile = std::chrono::seconds(1);
constexpr uint32_t kHandlersAtOnce = 16;  // before what they leave on the stack is zeroed

// Runs the threads of a server and handles signals. Its handlers run on one strand.
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
        sweep_(strand_),
        signals_(strand_) {}

  Status Listen() {
    KV_TRY(CheckEventLoop(io_));
    KV_TRY(acceptor_.Listen());
    if (acceptor_.IsLoopback()) service_->ListensOnLoopback();
    return acceptor_.CheckFiles();
  }

  Status Run() {
    const auto work =
        asio::make_work_guard(io_);  // keeps the threads running while there is no work
    io_.restart();                   // CheckEventLoop has stopped it
    ErrorCode ec;
    signals_.add(SIGINT, ec);
    if (!ec) signals_.add(SIGTERM, ec);
    // SIGHUP reloads the keys and the certificate. Without such files it ends the server like the
    // others, except under a service manager, and under nohup, where it must continue without a
    // terminal.
    struct sigaction hangup = {};
    const bool ignored = sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler == SIG_IGN;
    if (!ec && (!ignored || HasFiles())) signals_.add(SIGHUP, ec);
    if (ec) return Fail(Code::kIoError, "cannot handle signals: {}", ec.message());
    // Starts all threads before the first request, because the system may refuse one later.
    Status started = prepare_.Start();
    if (started) started = grammars_.Start();
    if (started && engine_.DiskStats()) started = disk_.Start();
    if (started) started = StartThreads();
    if (started) {
      asio::post(strand_, [this] {
        AwaitSignal();
        acceptor_.Start();
        AwaitSweep();
        LogStart();
        notify_.Send("READY=1\nSTATUS=serving " + engine_.card().id);
        watchdog_.Start();
      });
      RunHandlers();
    }
    io_.stop();
    shutdown_.EndWaiting();
    for (std::thread& thread : threads_) thread.join();
    KV_TRY(started);
    if (shutdown_.has_second_signal()) return Fail(Code::kCancelled, "stopped by a second signal");
    return {};
  }

 private:
  // Starts the second of kIoThreads, and a thread for each drain of the engine, which blocks.
  Status StartThreads() {
    const auto start = [this](auto body) -> Status {
      KV_ASSIGN(std::thread thread, StartThread("server", body));
      threads_.push_back(std::move(thread));
      return {};
    };
    threads_.reserve(kIoThreads - 1 + Shutdown::kMaxDrains);
    for (uint32_t i = 1; i < kIoThreads; ++i) KV_TRY(start([this] { RunHandlers(); }));
    for (int i = 0; i < Shutdown::kMaxDrains; ++i) {
      KV_TRY(start([this] { shutdown_.DrainWhenTold(); }));
    }
    return {};
  }

  // Runs handlers until the end. Those of connections catch their own exceptions. An exception from
  // a library between them ends its read or write; that connection then ends at its deadline.
  void RunHandlers() noexcept {
    for (;;) {
      try {
        while (io_.run_one() > 0) {
          for (uint32_t i = 1; i < kHandlersAtOnce && io_.poll_one() > 0;) ++i;
          WipeUnusedStack();
        }
        return;
      } catch (const std::exception& e) {
        Log(LogLevel::kError, "a connection ended", LogField("reason", e.what()));
      } catch (...) {
        Log(LogLevel::kError, "a connection ended", LogField("reason", "unknown error"));
      }
    }
  }

  void LogStart() {
    if (!IsLogged(LogLevel::kInfo)) return;
    LogText(fmt::format("{}accepts  up to {}, bodies up to {} KiB\n{}", options_.summary,
                        CountText(options_.max_connections, "connection"),
                        options_.max_body_bytes >> 10, acceptor_.Lines()));
  }

  // Ends sessions whose time is over, even if no client calls. One sweep at a time: a slow disk may
  // hold one up for longer than the time between two.
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

  void AwaitSignal() {
    UntilDone([this] {
      signals_.async_wait([this](ErrorCode ec, int signal) {
        if (ec) return;
        // A service manager's reload must never end the server.
        const bool reload = signal == SIGHUP && (HasFiles() || notify_.is_on());
        reload ? Reload() : shutdown_.OnSignal(signal);
        AwaitSignal();
      });
    });
  }

  void Reload() {
    if (shutdown_.has_begun()) return ReloadFiles();  // it stops: it must not say that it is ready
    notify_.Send(fmt::format("RELOADING=1\nMONOTONIC_USEC={}", MonotonicNs() / 1000));
    ReloadFiles();
    notify_.Send("READY=1");
  }

  bool HasFiles() const { return options_.keys_path || options_.tls; }

  void ReloadFiles() {
    if (options_.tls) ReloadCertificate();
    if (options_.keys_path) ReloadKeys();
    if (HasFiles()) return;
    Log(LogLevel::kInfo, "SIGHUP reloads the files of --keys and --tls-cert; this server has none");
  }

  // Reads the certificate anew; connections that are open keep the one that they began with.
  void ReloadCertificate() {
    const Status reloaded = options_.tls->Reload();
    if (!reloaded) {
      return Log(LogLevel::kWarning, "the certificate was not reloaded; the old one stays",
                 LogField("reason", reloaded.error().text()));
    }
    Log(LogLevel::kInfo, "the certificate was reloaded",
        LogField("file", options_.tls->certificate_path()),
        LogField("certificate", options_.tls->Text()));
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
  const ConnectionParts parts_{*service_, options_, connections_, prepare_, grammars_, disk_};
  Acceptor::Strand strand_;
  Acceptor acceptor_{io_, strand_, parts_};
  const ServiceNotify notify_;
  Watchdog watchdog_{notify_, engine_, strand_};
  Shutdown shutdown_{io_, strand_, parts_, acceptor_, notify_};
  asio::steady_timer sweep_;
  asio::signal_set signals_;
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
  const RequestMemory memory = Divide(engine.options().request_memory_bytes, given.max_body_bytes,
                                      given.max_connections, given.tls ? kTlsBytes : 0);
  ServerOptions options = given;
  options.max_body_bytes = memory.max_body_bytes;
  options.max_connections = std::min(memory.max_connections, ConnectionsForFiles());
  KV_ASSIGN(std::unique_ptr<Service> service, Service::Make(options, engine));
  try {
    Server server(options, memory, engine, std::move(service));
    KV_TRY(server.Listen());
    return server.Run();
  } catch (const boost::system::system_error& e) {  // from the event loop's descriptors
    return Fail(Code::kIoError,
                "server: the system refuses an event loop: {}; if too many files are open, raise "
                "their limit (ulimit -n)",
                e.code().message());
  }
}

}  // namespace kvasir
