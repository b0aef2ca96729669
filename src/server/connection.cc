// Long, because each handler is a step of one state machine and is read with the next one.
#include "server/connection.h"

#include <fmt/format.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "api/running_answer.h"
#include "base/log.h"
#include "base/until_done.h"
#include "http/http_text.h"
#include "http/request_id.h"
#include "http/request_memory.h"
#include "http/request_reader.h"
#include "http/response_writer.h"
#include "server/request_log.h"

namespace kvasir {
namespace {

namespace asio = boost::asio;
using ErrorCode = boost::system::error_code;

constexpr size_t kMaxLingerBytes = 64 << 20;  // dropped after an early answer
constexpr size_t kMaxUnsentBytes = 8 << 20;   // waiting for a client that reads a stream too slowly
constexpr uint32_t kWriteTimeoutMs = 60000;
constexpr uint32_t kLingerTimeoutMs = 5000;

// States: idle -> reading -> busy (Service answers, PreparePool prepares or an Engine generates)
// -> idle, or -> lingering (drops what the client still sends, so that it can read the answer) ->
// closed. One read at a time is pending: while busy, it notices when the client disconnects, and
// then the generation is cancelled. Bytes of the next request that come meanwhile wait in the
// reader, and the watch ends. Events of the engine are posted to the strand, so a slow client never
// blocks the engine's thread. A client is disconnected when kMaxUnsentBytes wait for it, when no
// memory for answers is left, or when a write takes kWriteTimeoutMs. An exception in a handler ends
// only this connection (Run); Close never throws. The server may close the connection to make room
// until its request has been read, and while its client reads nothing of an answer. One strand.
class Connection : public ConnectionHandle,
                   public AnswerClient,
                   public std::enable_shared_from_this<Connection> {
 public:
  Connection(asio::ip::tcp::socket socket, Service& service, const ServerOptions& options,
             ConnectionSet& connections, PreparePool& prepare, PreparePool& grammars,
             PreparePool& disk)
      : strand_(socket.get_executor()),
        socket_(std::move(socket)),
        timer_(strand_),
        ping_(strand_),
        service_(service),
        options_(options),
        connections_(connections),
        prepare_(prepare),
        grammars_(grammars),
        disk_(disk) {}

  void Start() {
    asio::post(strand_, [self = shared_from_this()] { self->Run([&] { self->AwaitRequest(); }); });
  }

  void Finish() override {
    asio::post(strand_, [self = shared_from_this()] {
      self->finishing_ = true;
      if (self->state_ == State::kIdle || self->state_ == State::kReading) self->Close();
    });
  }

  void CheckKey() override {
    asio::post(strand_,
               [self = shared_from_this()] { self->Run([&] { self->OnKeysReloaded(); }); });
  }

  void CloseForRoom() override {
    asio::post(strand_, [self = shared_from_this()] {
      if (self->connections_.IsClosing(self.get())) self->Close();
    });
  }

 private:
  struct Prepared {
    QuotaShare share;  // held until the engine has the request
    Outcome outcome;
  };
  enum class State { kIdle, kReading, kBusy, kLingering, kClosed };

  // Runs a handler; an exception (usually std::bad_alloc) ends the connection.
  template <typename Handler>
  void Run(Handler handler) noexcept {
    try {
      return handler();
    } catch (const std::exception& e) {
      kvasir::Log(LogLevel::kError, "a connection ended", LogField("reason", e.what()));
    } catch (...) {
      kvasir::Log(LogLevel::kError, "a connection ended", LogField("reason", "unknown error"));
    }
    Close();
  }

  // The handler of a read or write. When the library destroys it without a call, because memory for
  // the rest of the operation was refused, the connection ends.
  template <typename Handler>
  class Pending {
   public:
    Pending(std::shared_ptr<Connection> self, Handler handler)
        : self_(std::move(self)), handler_(std::move(handler)) {}
    ~Pending() {
      // A stopped loop destroys everything, including objects that Close uses.
      auto& io = static_cast<asio::io_context&>(self_->strand_.context());
      if (!called_ && !io.stopped()) self_->Close();
    }
    Pending(const Pending&) = delete;
    Pending& operator=(const Pending&) = delete;
    template <typename... Args>
    void Call(Args... args) {
      called_ = true;
      self_->Run([&] { handler_(args...); });
    }

   private:
    const std::shared_ptr<Connection> self_;
    Handler handler_;
    bool called_ = false;
  };

  // Calls handler(args...) on the strand when a read or write ends.
  template <typename Handler>
  auto Then(Handler handler) {
    return [pending = std::make_shared<Pending<Handler>>(shared_from_this(), std::move(handler))](
               auto... args) { pending->Call(args...); };
  }

  void SetDeadline(uint32_t ms) {
    timer_.expires_after(std::chrono::milliseconds(ms));
    timer_.async_wait([self = shared_from_this()](ErrorCode ec) {
      if (ec || self->timer_.expiry() > asio::steady_timer::clock_type::now()) return;
      self->Run([&] { self->OnDeadline(); });
    });
  }

  void ClearDeadline() { timer_.expires_at(std::chrono::steady_clock::time_point::max()); }

  void OnDeadline() {
    if (state_ == State::kReading && !late_) {
      late_ = true;  // the pending read ends and answers 408
      ErrorCode ignored;
      socket_.cancel(ignored);
      SetDeadline(kLingerTimeoutMs);  // between two reads there is no read to cancel
      return;
    }
    Close();
  }

  // --- reading

  void AwaitRequest() {
    if (finishing_) return Close();
    state_ = State::kIdle;
    connections_.Set(this, Waits::kForRequest);
    SetDeadline(options_.idle_timeout_ms);
    ReadHeadOrMore();
  }

  void ReadHeadOrMore() { reader_.AtRequest() ? ReadHead() : ReadSome(); }

  void ReadSome() {
    if (reader_.reading_some()) return;  // that read continues
    if (half_closed_) {                  // the event does not come again
      return asio::post(strand_, [self = shared_from_this()] {
        self->Run([&] { self->OnSome(asio::error::eof, 0); });
      });
    }
    reader_.ReadSome(Then([this](ErrorCode ec, size_t bytes) { OnSome(ec, bytes); }));
  }

  void OnSome(ErrorCode ec, size_t bytes) {
    if (state_ == State::kClosed) return;
    // A half-closed connection ends a generation; the client can still read other answers.
    if (ec == asio::error::eof && awaiting_ && !service_.Generates(request_)) {
      half_closed_ = true;
      return;
    }
    if (ec) return Close();
    if (state_ == State::kLingering) {
      reader_.DropBytes();
      lingered_bytes_ += bytes;
      return lingered_bytes_ > kMaxLingerBytes ? Close() : ReadSome();
    }
    if (state_ == State::kIdle) ReadHeadOrMore();
  }

  void ReadHead() {
    state_ = State::kReading;
    connections_.Set(this, Waits::kForRest);
    late_ = false;
    // An unreadable request must not keep the fields of the one before.
    request_ = HttpRequest();
    writer_.SetRequest({});
    SetDeadline(options_.read_timeout_ms);
    reader_.ReadHead(Then([this](ErrorCode ec, size_t) { OnHead(ec); }));
  }

  void OnHead(ErrorCode ec) {
    if (state_ == State::kClosed) return;
    if (ec) return Refuse(ec);
    RequestHead head = reader_.Head();
    request_ = std::move(head.request);
    if (!IsRequestId(request_.id)) request_.id = MakeRequestId();
    log_.emplace(request_.method, request_.target);
    log_->set_id(request_.id);
    if (head.is_head) request_.method = "GET";
    keep_alive_ = head.keep_alive;
    writer_.SetRequest({.version = head.version, .is_head = head.is_head});
    if (head.refusal) {
      keep_alive_ = false;
      return Respond(ErrorResponse(*head.refusal));
    }
    if (auto refusal = service_.CheckHead(request_, head.body_bytes)) {
      if (!head.whole) keep_alive_ = false;
      return Respond(std::move(*refusal));
    }
    if (head.whole) return OnWhole();
    max_body_bytes_ = service_.MaxBodyBytes(request_);
    if (!body_memory_.Hold(head.body_bytes.value_or(max_body_bytes_))) {
      keep_alive_ = false;
      service_.CountRejection(RejectReason::kMemory);
      return Respond(
          ErrorResponse({Code::kUnavailable, "too many large requests are being read; try again"}));
    }
    ReadBody();
  }

  void ReadBody() {
    late_ = false;
    SetDeadline(options_.read_timeout_ms);
    reader_.ReadBody(max_body_bytes_, Then([this](ErrorCode ec, size_t) { OnBody(ec); }));
  }

  void OnBody(ErrorCode ec) {
    if (state_ == State::kClosed) return;
    if (ec) return Refuse(ec);
    request_.body = reader_.TakeBody();
    OnWhole();
  }

  void OnWhole() {
    reader_.DropRequest();
    if (auto refusal = service_.TakeKey(&request_)) return Respond(std::move(*refusal));
    Dispatch();
  }

  // An unreadable request ends the connection, with an answer if the client may still see it.
  void Refuse(ErrorCode ec) {
    keep_alive_ = false;
    if (!log_) {  // not even the first line can be read
      request_.id = MakeRequestId();
      log_.emplace("-", "-").set_id(request_.id);
    }
    if (late_) {
      return Respond(ErrorResponse({Code::kDeadlineExceeded, "did not arrive in time", "request"}));
    }
    const auto error = ReadError(ec, max_body_bytes_);
    if (!error) return Close();  // the client is gone
    Respond(ErrorResponse(*error));
  }

  // --- answering

  void Dispatch() {
    state_ = State::kBusy;
    connections_.Set(this, Waits::kNot);
    ClearDeadline();
    auto turn = service_.AwaitTurn(request_, [weak = weak_from_this(), exchange = exchange_] {
      const std::shared_ptr<Connection> self = weak.lock();
      if (!self) return;
      UntilDone([&] {
        asio::post(self->strand_, [self, exchange] {
          if (exchange != self->exchange_ || self->state_ != State::kBusy) return;
          self->Run([&] { self->Handle(); });
        });
      });
    });
    if (!turn) return Respond(ErrorResponse(turn.error()));
    turn_ = std::move(*turn);
    if (!turn_ || turn_->has_come()) return Handle();
    awaiting_ = true;
    if (!reader_.has_bytes()) ReadSome();
  }

  void Handle() {
    if (!service_.NeedsPreparing(request_)) return Reply({{}, service_.Handle(request_, turn_)});
    awaiting_ = true;
    // Weak: when the connection ends while it waits, its body is freed. request_ does not change
    // before the answer.
    // What waits for the disk has its own threads: a disk that hangs holds up no other request.
    PreparePool& pool = service_.WaitsForDisk(request_) ? disk_ : prepare_;
    pool.Run(service_.TenantOf(request_), service_.WorkBytes(request_),
             [weak = weak_from_this(), exchange = exchange_, turn = turn_](MemoryQuota& quota) {
               if (const auto self = weak.lock()) self->Prepare(exchange, turn, quota);
             });
    if (!reader_.has_bytes()) ReadSome();
  }

  // Runs on a thread of the pool.
  void Prepare(uint64_t exchange, const Service::SessionTurn& turn, MemoryQuota& quota) noexcept {
    if (gone_.load(std::memory_order_relaxed)) return;
    bool made = false;
    Try([&] {
      prepared_.outcome = service_.Prepare(request_, quota, &prepared_.share, turn);
      made = true;
    });
    if (made && std::holds_alternative<LaterAnswer>(prepared_.outcome)) {
      // Here, because it may take long, and whether or not the client still waits.
      const Prepared prepared = std::move(prepared_);  // the answer may be there before this ends
      made = false;
      Try([&] {
        std::get<LaterAnswer>(prepared.outcome).begin(ReplyTo(exchange));
        made = true;
      });
      if (made) return;
    }
    UntilDone([&] {
      asio::post(strand_, [self = shared_from_this(), exchange, made] {
        Prepared prepared = std::move(self->prepared_);
        if (exchange != self->exchange_ || self->state_ != State::kBusy) {
          return self->DropUnbegun(prepared.outcome);
        }
        self->Run([&] { made ? self->Reply(std::move(prepared)) : self->Close(); });
      });
    });
  }

  // Makes the function that gives an answer to Reply, on the strand.
  LaterAnswer::Reply ReplyTo(uint64_t exchange) {
    return [weak = weak_from_this(), exchange](HttpResponse response) {
      const std::shared_ptr<Connection> self = weak.lock();
      if (!self) return;
      asio::post(self->strand_, [self, exchange, response = std::move(response)]() mutable {
        if (exchange != self->exchange_ || self->state_ != State::kBusy) return;
        self->Run([&] { self->Reply({{}, std::move(response)}); });
      });
    };
  }

  void Reply(Prepared prepared) {
    Outcome& outcome = prepared.outcome;
    awaiting_ = false;
    std::string().swap(request_.body);  // an assignment would keep its memory
    body_memory_.Hold(0);
    turn_.reset();  // an outcome that still needs it has it
    if (auto* response = std::get_if<HttpResponse>(&outcome)) return Respond(std::move(*response));
    if (const auto* later = std::get_if<LaterAnswer>(&outcome)) return AwaitAnswer(*later);
    Generate(std::move(std::get<GenerationStart>(outcome)), std::move(prepared.share));
  }

  // Ends a generation that has not begun and whose client is gone.
  void DropUnbegun(Outcome& outcome) noexcept {
    auto* start = std::get_if<GenerationStart>(&outcome);
    if (start) Try([&] { AnswerOf(std::move(*start))->Cancel(); });
  }

  void AwaitAnswer(const LaterAnswer& later) {
    awaiting_ = true;
    later.begin(ReplyTo(exchange_));
    if (!reader_.has_bytes()) ReadSome();
  }

  std::shared_ptr<RunningAnswer> AnswerOf(GenerationStart start) {
    const std::string tenant = start.tenant;
    return std::make_shared<RunningAnswer>(
        std::move(start), service_.engine(), weak_from_this(),
        [rates = service_.rates(), tenant](uint64_t tokens) { rates->TakeTokens(tenant, tokens); });
  }

  // `share` is kept until the engine has the requests.
  void Generate(GenerationStart start, QuotaShare share) {
    const uint64_t bytes = start.answer_bytes;
    answer_ = AnswerOf(std::move(start));
    begun_ = false;
    // Its key may have been removed while it was prepared.
    if (service_.TenantOf(request_) != answer_->tenant()) return OnAnswerError(KeyRevoked());
    if (!answer_memory_.Hold(bytes)) {
      return OnAnswerError(
          {Code::kExhausted, fmt::format("running and unsent answers leave no room for an "
                                         "answer of {} bytes; try again later",
                                         bytes)});
    }
    answer_->Start(std::move(share));
    if (!answer_) return;  // the engine has refused it
    AwaitPing();
    if (!reader_.has_bytes()) ReadSome();
  }

  void Post(std::function<void()> step) override {
    asio::post(strand_, [self = shared_from_this(), step = std::move(step)] { self->Run(step); });
  }

  void Run(SlowWork kind, const std::string& tenant, size_t bytes,
           std::function<void(MemoryQuota&)> work) override {
    PreparePool& pool = kind == SlowWork::kDisk      ? disk_
                        : kind == SlowWork::kGrammar ? grammars_
                                                     : prepare_;
    pool.Run(tenant, bytes, std::move(work));
  }

  void OnAnswer(const std::string& text) override {
    if (!answer_ || state_ != State::kBusy) return;
    const WrittenAnswer& written = answer_->written();
    if (!written.streams() && !answer_memory_.HoldMore(written.held_bytes())) {
      CancelAll();
      return Respond(NoRoomToAnswer());
    }
    if (!text.empty()) {
      if (!begun_) BeginStream();
      writer_.PutStreamText(text);
      Send();
      AwaitPing();
    }
    if (!answer_ || !written.done()) return;  // absent: a failed write has closed the connection
    told_ = std::move(answer_);
    Try([&] { told_->PrepareNext(); });  // the answer does not depend on it
    service_.Count(told_->tenant(), written.answer());
    if (log_) log_->Told(written.answer());
    if (written.streams()) return EndStream();
    HttpResponse response;
    response.rest = written.Body();
    response.rest_bytes = written.held_bytes();
    Respond(std::move(response));
  }

  // The answer ends with an error: a response, or the last event of a stream that has begun.
  void OnAnswerError(const Error& error) override {
    if (!answer_ || state_ != State::kBusy) return;
    const std::string event = answer_->written().ErrorEvent(error);
    CancelAll();
    if (!begun_) return Respond(ErrorResponse(error));
    keep_alive_ = false;
    if (log_) log_->Refused(RefusalOf(error));
    writer_.PutStreamText(event);
    EndStream();
  }

  HttpResponse NoRoomToAnswer() {
    service_.CountRejection(RejectReason::kMemory);
    return ErrorResponse(
        {Code::kUnavailable,
         "answers that clients have not read leave no memory for this one; try again"});
  }

  void OnKeysReloaded() {
    if (answer_ && service_.TenantOf(request_) != answer_->tenant()) OnAnswerError(KeyRevoked());
  }

  // A stream that is silent gets a comment now and then, so that no proxy on the way ends it.
  void AwaitPing() {
    if (!answer_ || !answer_->written().streams() || options_.sse_ping_s == 0) return;
    ping_.expires_after(std::chrono::seconds(options_.sse_ping_s));
    ping_.async_wait([self = shared_from_this(), exchange = exchange_](ErrorCode ec) {
      if (ec || exchange != self->exchange_) return;
      self->Run([&] { self->Ping(); });
    });
  }

  void Ping() {
    if (!answer_ || state_ != State::kBusy) return;
    if (!writer_.writing() && answer_->generates()) {
      if (!begun_) BeginStream();
      writer_.PutStreamText(": ping\n\n");
      Send();
    }
    AwaitPing();
  }

  void CancelAll() {
    ++exchange_;  // what is still being prepared is ignored
    if (const auto answer = std::exchange(answer_, nullptr)) answer->Cancel();
  }

  std::string Head(int status, std::string_view content_type) {
    if (log_) log_->set_status(status);
    const AfterAnswer after = keep_alive_ ? AfterAnswer::kKeepAlive : AfterAnswer::kClose;
    return HeadText(status, content_type, after, service_.CommonHeaders(request_));
  }

  void BeginStream() {
    begun_ = true;
    if (!writer_.frames()) keep_alive_ = false;
    writer_.PutStreamHead(Head(200, "text/event-stream; charset=utf-8"));
  }

  void EndStream() {
    writer_.PutStreamEnd();
    Send();
  }

  void Respond(HttpResponse response) {
    state_ = State::kBusy;
    if (finishing_) keep_alive_ = false;
    service_.ShapeError(request_, &response);
    ResponseWriter::Gather(&response);
    if (!response.rest) told_.reset();
    const uint64_t bytes = response.rest ? response.rest_bytes : response.body.size();
    if (!answer_memory_.Hold(bytes) && !(response.is_metrics && metrics_memory_.Hold(bytes))) {
      response = NoRoomToAnswer();
      service_.ShapeError(request_, &response);
    }
    if (response.rest && !writer_.frames()) keep_alive_ = false;
    const std::string head = Head(response.status, response.content_type);
    if (log_ && response.refusal) log_->Refused(*response.refusal);
    writer_.Put(head, std::move(response));
    Send();
  }

  // Sends what was put into the writer.
  void Send() {
    if (answer_ && begun_ && !HoldUnsent()) return Close();
    if (!writer_.writing()) Write();
  }

  // Holds memory for the unsent bytes of a stream.
  bool HoldUnsent() {
    const uint64_t bytes = writer_.held_bytes();
    return bytes <= kMaxUnsentBytes && answer_memory_.Hold(answer_->written().held_bytes() + bytes);
  }

  void Write() {
    SetDeadline(kWriteTimeoutMs);
    connections_.Set(this, Waits::kForClient);
    writer_.Write(Then([this](ErrorCode ec) { OnWritten(ec); }));
  }

  void OnWritten(ErrorCode ec) {
    if (state_ == State::kClosed) return;
    if (ec) return Close();
    if (answer_ && begun_) HoldUnsent();  // releases memory
    if (writer_.Advance()) return Write();
    connections_.Set(this, Waits::kNot);
    ClearDeadline();
    if (!writer_.ended()) return;
    writer_.NextAnswer();
    ++exchange_;
    Log("");
    DropAnswer();
    if (keep_alive_ && !finishing_) return AwaitRequest();
    Linger();
  }

  void DropAnswer() {
    writer_.DropParts();
    told_.reset();
    answer_memory_.Hold(0);
    metrics_memory_.Hold(0);
  }

  void Log(std::string_view remark) {
    if (!options_.on_request || !log_) return;
    ErrorCode ec;
    const auto peer = socket_.remote_endpoint(ec);
    const std::string line = log_->Line(ec ? "-" : peer.address().to_string(), remark);
    if (!line.empty()) options_.on_request(line);
    log_.reset();
  }

  // --- ending

  // Closing with unread bytes would reset the connection and lose the answer.
  void Linger() {
    state_ = State::kLingering;
    connections_.Set(this, Waits::kForRequest);
    ErrorCode ignored;
    socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
    SetDeadline(kLingerTimeoutMs);
    reader_.DropBytes();
    reader_.DropRequest();
    ReadSome();
  }

  void Close() noexcept {
    if (state_ == State::kClosed) return;
    const bool answering = state_ == State::kBusy;
    state_ = State::kClosed;
    gone_.store(true, std::memory_order_relaxed);
    // A client that disconnects when the whole answer is on its way loses nothing.
    if (answering) Try([&] { Log(writer_.all_in_flight() ? "" : " (the client is gone)"); });
    Try([&] { CancelAll(); });  // if this fails, they end by themselves
    Try([&] { turn_.reset(); });
    Try([&] { timer_.cancel(); });
    Try([&] { ping_.cancel(); });
    body_memory_.Hold(0);
    DropAnswer();
    ErrorCode ignored;
    socket_.close(ignored);
    connections_.Remove(this);
  }

  // Runs one step of the end; an exception must not stop the other steps.
  template <typename Step>
  static void Try(Step step) noexcept {
    try {
      step();
    } catch (...) {
    }
  }

  const asio::any_io_executor strand_;
  asio::ip::tcp::socket socket_;
  asio::steady_timer timer_;
  asio::steady_timer ping_;  // of a stream that is silent
  Service& service_;
  const ServerOptions& options_;
  ConnectionSet& connections_;
  PreparePool& prepare_;
  PreparePool& grammars_;
  PreparePool& disk_;

  State state_ = State::kIdle;
  bool finishing_ = false;  // the server is stopping
  bool late_ = false;       // the deadline of the request that is being read has passed
  RequestReader reader_{socket_};
  ResponseWriter writer_{socket_};
  size_t lingered_bytes_ = 0;
  HeldBytes body_memory_{connections_.bodies()};
  HeldBytes answer_memory_{connections_.answers()};
  HeldBytes metrics_memory_{connections_.metrics()};

  // The request that is being answered.
  HttpRequest request_;
  bool keep_alive_ = false;
  bool begun_ = false;        // the headers of a stream were sent
  bool awaiting_ = false;     // waits for the pool or the engine
  bool half_closed_ = false;  // the client sends nothing more, but may still read
  std::optional<RequestLog> log_;
  uint64_t max_body_bytes_ = 0;  // of the current request
  uint64_t exchange_ = 0;
  Service::SessionTurn turn_;      // until the outcome is known
  Prepared prepared_;              // passed from the pool; not read by anybody else meanwhile
  std::atomic<bool> gone_{false};  // a hint for the pool; publishes no data
  std::shared_ptr<RunningAnswer> answer_;  // until it is done
  std::shared_ptr<RunningAnswer> told_;    // parts in writer_ refer to it
};

}  // namespace

void StartConnection(asio::ip::tcp::socket socket, Service& service, const ServerOptions& options,
                     ConnectionSet& connections, PreparePool& prepare, PreparePool& grammars,
                     PreparePool& disk) {
  ErrorCode ignored;
  socket.set_option(asio::ip::tcp::no_delay(true), ignored);  // send each token at once
  auto connection = std::make_shared<Connection>(std::move(socket), service, options, connections,
                                                 prepare, grammars, disk);
  connections.Add(connection);
  try {
    connection->Start();
  } catch (...) {  // no memory for its first handler: without this it would never end
    connections.Remove(connection.get());
    throw;
  }
}

}  // namespace kvasir
