// Exchange: one request on a connection, and its answer.
#pragma once

#include <atomic>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "api/running_answer.h"
#include "base/memory_meter.h"
#include "http/connection_set.h"
#include "http/http_message.h"
#include "http/request_reader.h"
#include "http/response_writer.h"
#include "server/outcome.h"
#include "server/prepare_pool.h"
#include "server/request_log.h"
#include "server/server.h"
#include "server/service.h"

namespace kvasir {

// The parts of a server that its connections share. All of them outlive the connections.
struct ConnectionParts {
  Service& service;
  const ServerOptions& options;
  ConnectionSet& connections;
  PreparePool& prepare;
  PreparePool& grammars;  // compiles formats
  PreparePool& disk;      // runs what waits for a disk: one that hangs holds up no other request
};

// The connection of an exchange. Made by make_shared; all calls come on its strand.
class ExchangeHost {
 public:
  virtual ~ExchangeHost() = default;

  // Sends what was put into the writer, unless a write is under way, which goes on with it.
  virtual void Send() = 0;
  // Reads on, unless bytes of the next request have come: a read notices when the client leaves.
  virtual void WatchClient() = 0;
  virtual void Close() noexcept = 0;
  // Tells whether the server stops: then the connection takes no further request.
  virtual bool is_finishing() const = 0;
  // Returns the client's address; "-": it is not known any more.
  virtual std::string PeerAddress() const = 0;
};

// Lives from the first byte of a request until its answer is written or the connection ends.
// States: made -> head taken -> (body taken) -> dispatched (the service answers, a PreparePool
// prepares or an engine generates) -> responding -> over. Events of the engine are posted to the
// strand, so a slow client never blocks the engine's thread. The connection is closed when too many
// bytes wait for its client, or when no memory for answers is left. Made by make_shared. One
// strand, except what says otherwise.
class Exchange : public AnswerClient, public std::enable_shared_from_this<Exchange> {
 public:
  // `strand` is that of `host`, which has `writer`. `host` is not used after it has ended.
  Exchange(const ConnectionParts& parts, const std::shared_ptr<ExchangeHost>& host,
           boost::asio::any_io_executor strand, ResponseWriter& writer);

  // Takes the head of the request. Returns an answer that refuses it; absent: the request goes on,
  // with its body unless head.whole.
  std::optional<HttpResponse> TakeHead(RequestHead head);
  // Returns the limit of the body; 0 before TakeHead and for a request without one.
  uint64_t max_body_bytes() const { return max_body_bytes_; }
  void TakeBody(std::string body) { request_.body = std::move(body); }
  // Finds the answer. REQUIRES: TakeHead let the request go on, and its body was taken.
  void Dispatch();
  // Answers with this. REQUIRES: not dispatched.
  void Respond(HttpResponse response);
  // Answers a request that cannot be read to its end; the connection ends after it.
  void RespondToUnread(const Error& error);
  // Ends a generation whose key is not valid any more.
  void CheckKey();

  // Tells whether an engine makes the answer: then it ends when the client closes its side. Any
  // other answer, and one that is made, is sent all the same, since the client may still read.
  bool EndsWithClient() const {
    return answer_ || (awaiting_ && parts_.service.Generates(request_));
  }
  // Releases memory of what was sent.
  void OnSent();
  // Ends the exchange after its answer was written. Returns whether the client may send another
  // request.
  bool End();
  // Ends the exchange at once, because the connection ends. `is_answering`: logs that too.
  void Cut(bool is_answering) noexcept;

  // Takes the calls of a RunningAnswer. Post and Run are thread-safe.
  void Post(std::function<void()> step) override;
  void Run(SlowWork kind, const std::string& tenant, size_t bytes,
           std::function<void(MemoryQuota&)> work) override;
  void OnAnswer(const std::string& text) override;
  void OnAnswerError(const Error& error) override;

 private:
  struct Prepared {
    QuotaShare share;  // held until the engine has the request
    Outcome outcome;
  };

  // What it holds of the memory of all connections.
  struct Memory {
    explicit Memory(ConnectionSet& connections)
        : body(connections.bodies()),
          answer(connections.answers()),
          metrics(connections.metrics()) {}
    HeldBytes body, answer, metrics;
  };

  // Runs a step on the strand; an exception ends the connection.
  template <typename Step>
  void RunStep(Step&& step) noexcept;
  // Posts a step to the strand, where it runs unless the exchange is over by then. Thread-safe.
  template <typename Step>
  void Soon(Step step);

  void Handle();
  void Prepare(const Service::SessionTurn& turn,
               MemoryQuota& quota) noexcept;  // on a pool's thread
  LaterAnswer::Reply ReplyLater();
  void Reply(Prepared prepared);
  void DropUnbegun(Outcome& outcome) noexcept;
  std::shared_ptr<RunningAnswer> AnswerOf(GenerationStart start);
  void Generate(GenerationStart start, QuotaShare share);
  HttpResponse NoRoomToAnswer();
  void AwaitPing();
  void Ping();
  void CancelAnswer();
  std::string Head(int status, std::string_view content_type);
  void BeginStream();
  void EndStream();
  void Send();
  bool HoldUnsent();
  void DropAnswer();
  void WriteLog(std::string_view remark);

  const ConnectionParts parts_;
  const std::weak_ptr<ExchangeHost> weak_host_;
  ExchangeHost& host_;  // while weak_host_ is locked, or the host itself calls
  const boost::asio::any_io_executor strand_;
  ResponseWriter& writer_;  // of the host

  HttpRequest request_;
  bool keep_alive_ = false;
  uint64_t max_body_bytes_ = 0;
  std::optional<RequestLog> log_;
  Memory memory_{parts_.connections};

  bool awaiting_ = false;          // waits for the pool or the engine
  bool begun_ = false;             // the headers of a stream were sent
  bool is_over_ = false;           // what is still being prepared is ignored
  std::atomic<bool> gone_{false};  // a hint for the pool; publishes no data
  Service::SessionTurn turn_;      // until the outcome is known
  Prepared prepared_;              // passed from the pool; not read by anybody else meanwhile
  std::shared_ptr<RunningAnswer> answer_;  // until it is done
  std::shared_ptr<RunningAnswer> told_;    // parts in writer_ refer to it
  boost::asio::steady_timer ping_;         // of a stream that is silent
};

}  // namespace kvasir
