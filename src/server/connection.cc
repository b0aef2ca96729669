#include "server/connection.h"

#include <fmt/format.h>

#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/http_text.h"
#include "server/request_log.h"
#include "server/request_memory.h"

namespace kvasir {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using ErrorCode = beast::error_code;

constexpr size_t kReadBytes = 16 << 10;
constexpr size_t kMaxLingerBytes = 64 << 20;  // read and dropped after an early answer
constexpr size_t kMaxUnsentBytes = 8 << 20;   // of a stream whose client does not keep up
constexpr size_t kWholeBytes = 16 << 10;      // of a body; a longer one is sent in chunks
constexpr uint32_t kWriteTimeoutMs = 60000;
constexpr uint32_t kLingerTimeoutMs = 5000;

std::string_view View(beast::string_view text) { return {text.data(), text.size()}; }

// States: idle -> reading -> busy (Service answers, an Engine generates) -> idle, or -> lingering
// (what the client still sends is dropped, so that it can read the answer) -> closed. One read at a
// time is pending: while busy it is there to notice that the client hung up, and then the
// generation is cancelled. Bytes of the next request that come meanwhile wait in buffer_; the watch
// stops there. Events of the engine are posted to the strand: a slow client never blocks the
// engine's thread; it is cut off when kMaxUnsentBytes wait for it, when no memory for answers is
// left, or when a write takes kWriteTimeoutMs. One strand.
class Connection : public ConnectionHandle, public std::enable_shared_from_this<Connection> {
 public:
  Connection(asio::ip::tcp::socket socket, Service& service, const ServerOptions& options,
             ConnectionSet& connections)
      : strand_(socket.get_executor()),
        socket_(std::move(socket)),
        timer_(strand_),
        service_(service),
        options_(options),
        connections_(connections) {}

  void Start() {
    asio::post(strand_, [self = shared_from_this()] { self->AwaitRequest(); });
  }

  void Finish() override {
    asio::post(strand_, [self = shared_from_this()] {
      self->finishing_ = true;
      if (self->state_ == State::kIdle) self->Close();
    });
  }

  void CloseIfIdle() override {
    asio::post(strand_, [self = shared_from_this()] {
      if (self->state_ == State::kIdle) self->Close();
    });
  }

 private:
  enum class State { kIdle, kReading, kBusy, kLingering, kClosed };

  void SetDeadline(uint32_t ms) {
    timer_.expires_after(std::chrono::milliseconds(ms));
    timer_.async_wait([self = shared_from_this()](ErrorCode ec) {
      if (ec || self->timer_.expiry() > std::chrono::steady_clock::now()) return;
      self->OnDeadline();
    });
  }

  void ClearDeadline() { timer_.expires_at(std::chrono::steady_clock::time_point::max()); }

  void OnDeadline() {
    if (state_ == State::kReading && !late_) {
      late_ = true;  // the pending read ends and answers 408
      ErrorCode ignored;
      socket_.cancel(ignored);
      return;
    }
    Close();
  }

  // --- reading

  void AwaitRequest() {
    if (finishing_) return Close();
    state_ = State::kIdle;
    connections_.SetIdle(this);
    SetDeadline(options_.idle_timeout_ms);
    ReadHeadOrMore();
  }

  // Empty lines before a request are skipped (RFC 9112, section 2.2).
  void ReadHeadOrMore() {
    const auto starts_with = [this](std::string_view text) {
      return std::string_view(static_cast<const char*>(buffer_.data().data()), buffer_.size())
          .starts_with(text);
    };
    while (starts_with("\r\n")) buffer_.consume(2);
    const bool more = buffer_.size() == 0 || (buffer_.size() == 1 && starts_with("\r"));
    more ? ReadSome() : ReadHead();
  }

  void ReadSome() {
    if (read_pending_) return;
    read_pending_ = true;
    socket_.async_read_some(buffer_.prepare(kReadBytes),
                            [self = shared_from_this()](ErrorCode ec, size_t bytes) {
                              self->read_pending_ = false;
                              self->OnSome(ec, bytes);
                            });
  }

  void OnSome(ErrorCode ec, size_t bytes) {
    if (state_ == State::kClosed) return;
    if (ec) return Close();
    if (state_ == State::kLingering) {
      buffer_.clear();
      lingered_bytes_ += bytes;
      return lingered_bytes_ > kMaxLingerBytes ? Close() : ReadSome();
    }
    buffer_.commit(bytes);
    if (state_ == State::kIdle) ReadHeadOrMore();
  }

  void ReadHead() {
    state_ = State::kReading;
    connections_.SetBusy(this);
    late_ = false;
    SetDeadline(options_.read_timeout_ms);
    parser_.emplace();
    parser_->header_limit(kHeadBytes);
    parser_->body_limit(boost::none);  // ours, once the head is known to be welcome
    http::async_read_header(
        socket_, buffer_, *parser_,
        [self = shared_from_this()](ErrorCode ec, size_t) { self->OnHead(ec); });
  }

  void OnHead(ErrorCode ec) {
    if (state_ == State::kClosed) return;
    if (ec) return Refuse(ec);
    TakeHead();
    if (const auto refusal = CheckFraming(parser_->get())) {
      keep_alive_ = false;
      return Respond(ErrorResponse(*refusal));
    }
    std::optional<uint64_t> body_bytes;
    if (parser_->content_length()) body_bytes = *parser_->content_length();
    if (auto refusal = service_.CheckHead(request_, body_bytes)) {
      if (!parser_->is_done()) keep_alive_ = false;
      return Respond(std::move(*refusal));
    }
    if (parser_->is_done()) return Dispatch();
    max_body_bytes_ = service_.MaxBodyBytes(request_);
    const uint64_t bytes = body_bytes.value_or(max_body_bytes_);
    if (bytes > kSmallBodyBytes) {
      if (!connections_.HoldBodyBytes(0, bytes)) {
        keep_alive_ = false;
        return Respond(ErrorResponse(
            {Code::kUnavailable, "too many large requests are being read; try again"}));
      }
      body_bytes_ = bytes;
    }
    parser_->body_limit(max_body_bytes_);
    if (!beast::iequals(parser_->get()[http::field::expect], "100-continue")) return ReadBody();
    static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
    asio::async_write(socket_, asio::buffer(kContinue),
                      [self = shared_from_this()](ErrorCode write_error, size_t) {
                        write_error ? self->Close() : self->ReadBody();
                      });
  }

  void TakeHead() {
    const auto& head = parser_->get();
    const auto field = [&head](auto name) { return std::string(View(head[name])); };
    request_ = HttpRequest{};
    request_.method = std::string(View(head.method_string()));
    request_.target = OriginForm(View(head.target()));
    request_.authorization = field(http::field::authorization);
    request_.api_key = field("x-api-key");
    request_.origin = field(http::field::origin);
    request_.requested_headers = field(http::field::access_control_request_headers);
    log_.emplace(request_.method, request_.target);
    without_body_ = request_.method == "HEAD";
    if (without_body_) request_.method = "GET";
    http11_ = head.version() >= 11;
    keep_alive_ = head.keep_alive();
  }

  void ReadBody() {
    SetDeadline(options_.read_timeout_ms);
    http::async_read(socket_, buffer_, *parser_, [self = shared_from_this()](ErrorCode ec, size_t) {
      if (self->state_ == State::kClosed) return;
      if (ec) return self->Refuse(ec);
      self->request_.body = std::move(self->parser_->get().body());
      self->Dispatch();
    });
  }

  void GiveBody() {
    if (body_bytes_ > 0) connections_.HoldBodyBytes(std::exchange(body_bytes_, 0), 0);
  }

  // What is kept of the answer until it is sent; little of it is the connection's own. False: there
  // is no room for so much now.
  bool HoldAnswer(uint64_t bytes) {
    if (bytes <= kSmallBodyBytes) bytes = 0;
    if (bytes == answer_bytes_) return true;
    if (!connections_.HoldAnswerBytes(answer_bytes_, bytes)) return false;
    answer_bytes_ = bytes;
    return true;
  }

  // A request that cannot be read ends the connection, with an answer where the client may see it.
  void Refuse(ErrorCode ec) {
    keep_alive_ = false;
    if (late_) {
      return Respond(ErrorResponse(
          {Code::kDeadlineExceeded, "the request did not arrive in time", "", 408, "timeout"}));
    }
    const auto error = ReadError(ec, max_body_bytes_);
    if (!error) return Close();  // the client is gone
    Respond(ErrorResponse(*error));
  }

  // --- answering

  void Dispatch() {
    state_ = State::kBusy;
    ClearDeadline();
    Outcome outcome = service_.Handle(request_);
    request_.body = std::string();
    GiveBody();
    if (auto* response = std::get_if<HttpResponse>(&outcome)) return Respond(std::move(*response));
    Generate(std::move(std::get<GenerationStart>(outcome)));
  }

  void Generate(GenerationStart start) {
    if (!HoldAnswer(start.answer_bytes)) {
      return Respond(ErrorResponse(
          {Code::kExhausted,
           fmt::format("answers that are being made or sent leave no room for {} bytes more: wait",
                       start.answer_bytes)}));
    }
    answer_ = std::move(start.answer);
    tenant_ = std::move(start.tenant);
    begun_ = false;
    auto sink = [weak = weak_from_this(), exchange = exchange_](size_t prompt, const Event& event) {
      const std::shared_ptr<Connection> self = weak.lock();
      if (!self) return;
      asio::post(self->strand_,
                 [self, exchange, prompt, event] { self->OnEvent(exchange, prompt, event); });
    };
    auto ids = service_.engine().SubmitAll(std::move(start.requests), std::move(sink));
    if (!ids) {
      CancelAll();
      return Respond(ErrorResponse(SubmitError(ids.error(), start.prompt_param)));
    }
    running_ = std::move(*ids);
    if (buffer_.size() == 0) ReadSome();
  }

  void OnEvent(uint64_t exchange, size_t prompt, const Event& event) {
    if (exchange != exchange_ || !answer_ || state_ != State::kBusy) return;
    const std::string text = answer_->Take(prompt, event);
    if (answer_->error()) return Fail();
    if (!answer_->streams() && answer_->held_bytes() > answer_bytes_ &&
        !HoldAnswer(answer_->held_bytes())) {
      CancelAll();
      return Respond(NoRoomToAnswer());
    }
    if (!text.empty()) {
      if (!begun_) Send(StreamHead());
      begun_ = true;
      Send(ChunkText(text, http11_));
    }
    if (!answer_ || !answer_->done()) return;  // absent: closed by what could not be sent
    told_ = std::move(answer_);
    running_.clear();
    service_.Count(tenant_, *told_);
    if (log_) log_->Told(*told_);
    if (told_->streams()) return End(LastChunkText(http11_));
    HttpResponse response;
    response.rest = told_->Body();
    response.rest_bytes = told_->held_bytes();
    Respond(std::move(response));
  }

  static HttpResponse NoRoomToAnswer() {
    return ErrorResponse({Code::kUnavailable,
                          "answers that are not read yet leave no memory for this one; try again"});
  }

  void Fail() {
    const std::unique_ptr<Answer> answer = std::move(answer_);
    CancelAll();
    if (!begun_) return Respond(ErrorResponse(*answer->error()));
    keep_alive_ = false;
    End(ChunkText(answer->ErrorEvent(), http11_) + LastChunkText(http11_));
  }

  void CancelAll() {
    ++exchange_;  // what they still tell belongs to nothing
    answer_.reset();
    for (const RequestId id : running_) service_.engine().Cancel(id);
    running_.clear();
  }

  std::string Head(int status, std::string_view content_type) {
    if (log_) log_->set_status(status);
    return HeadText(status, content_type, keep_alive_, service_.CommonHeaders(request_));
  }

  std::string StreamHead() {
    if (!http11_) keep_alive_ = false;  // the end of an unframed body is the connection's
    return Head(200, "text/event-stream; charset=utf-8") +
           "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n" + ChunkedHeader(http11_);
  }

  void Respond(HttpResponse response) {
    state_ = State::kBusy;
    if (finishing_) keep_alive_ = false;
    while (response.rest && response.body.size() < kWholeBytes) {
      const std::string part = response.rest.Next();
      response.body += part;
      if (part.empty()) response.rest = Parts();
    }
    if (!response.rest) told_.reset();
    if (!HoldAnswer(response.rest ? response.rest_bytes : response.body.size())) {
      response = NoRoomToAnswer();
    }
    if (response.rest && !http11_) keep_alive_ = false;
    std::string text = Head(response.status, response.content_type);
    for (const auto& [name, value] : response.headers) {
      text += fmt::format("{}: {}\r\n", name, value);
    }
    rest_ = std::move(response.rest);
    if (rest_) return Send(text + ChunkedHeader(http11_) + ChunkText(response.body, http11_));
    text += fmt::format("Content-Length: {}\r\n\r\n", response.body.size());
    if (!without_body_) text += response.body;
    End(std::move(text));
  }

  void End(std::string text) {
    ended_ = true;
    Send(std::move(text));
  }

  void Send(std::string text) {
    unsent_ += text;
    if (answer_ && begun_ && !HoldUnsent()) return Close();
    if (!write_pending_) Write();
  }

  // Of a stream.
  bool HoldUnsent() {
    const size_t bytes = unsent_.capacity() + in_flight_.capacity();
    return bytes <= kMaxUnsentBytes && HoldAnswer(answer_->held_bytes() + bytes);
  }

  void Write() {
    write_pending_ = true;
    std::swap(in_flight_, unsent_);
    SetDeadline(kWriteTimeoutMs);
    asio::async_write(socket_, asio::buffer(in_flight_),
                      [self = shared_from_this()](ErrorCode ec, size_t) { self->OnWritten(ec); });
  }

  void OnWritten(ErrorCode ec) {
    write_pending_ = false;
    in_flight_.clear();
    if (in_flight_.capacity() > kWholeBytes) in_flight_.shrink_to_fit();
    if (state_ == State::kClosed) return;
    if (ec) return Close();
    if (answer_ && begun_) HoldUnsent();  // less than before
    if (!unsent_.empty()) return Write();
    if (rest_) return SendRest();
    ClearDeadline();
    if (!ended_) return;
    ended_ = false;
    ++exchange_;
    Log("");
    DropAnswer();
    if (keep_alive_ && !finishing_) return AwaitRequest();
    Linger();
  }

  void SendRest() {
    const std::string part = rest_.Next();
    if (!part.empty()) return Send(ChunkText(part, http11_));
    rest_ = Parts();
    End(LastChunkText(http11_));
  }

  void DropAnswer() {
    rest_ = Parts();
    told_.reset();
    HoldAnswer(0);
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
    ErrorCode ignored;
    socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
    SetDeadline(kLingerTimeoutMs);
    buffer_.clear();
    ReadSome();
  }

  void Close() {
    if (state_ == State::kClosed) return;
    // Hanging up once the whole answer is on its way is no loss.
    if (state_ == State::kBusy) Log(ended_ && unsent_.empty() ? "" : " (the client is gone)");
    state_ = State::kClosed;
    GiveBody();
    CancelAll();
    DropAnswer();
    timer_.cancel();
    ErrorCode ignored;
    socket_.close(ignored);
    connections_.Remove(this);
  }

  const asio::any_io_executor strand_;
  asio::ip::tcp::socket socket_;
  asio::steady_timer timer_;
  Service& service_;
  const ServerOptions& options_;
  ConnectionSet& connections_;

  State state_ = State::kIdle;
  bool finishing_ = false;  // the server stops
  bool late_ = false;       // the deadline of the request that is being read has passed
  bool read_pending_ = false, write_pending_ = false;
  beast::flat_buffer buffer_;
  size_t lingered_bytes_ = 0;
  std::optional<http::request_parser<http::string_body>> parser_;

  // Of the request that is being answered.
  HttpRequest request_;
  bool keep_alive_ = false, http11_ = true, without_body_ = false;
  bool begun_ = false;  // a stream's head was sent
  std::string tenant_;
  std::optional<RequestLog> log_;
  uint64_t max_body_bytes_ = 0;  // of the request at hand
  uint64_t body_bytes_ = 0;      // taken from connections_
  bool ended_ = false;           // all of the answer is in unsent_ or in_flight_
  uint64_t exchange_ = 0;
  std::unique_ptr<Answer> answer_;  // that events still make
  std::unique_ptr<Answer> told_;    // that rest_ refers to
  Parts rest_;                      // of the body that is being sent
  uint64_t answer_bytes_ = 0;       // taken from connections_
  std::vector<RequestId> running_;
  std::string unsent_, in_flight_;
};

}  // namespace

void StartConnection(asio::ip::tcp::socket socket, Service& service, const ServerOptions& options,
                     ConnectionSet& connections) {
  ErrorCode ignored;
  socket.set_option(asio::ip::tcp::no_delay(true), ignored);  // a token must not wait for the next
  auto connection = std::make_shared<Connection>(std::move(socket), service, options, connections);
  connections.Add(connection);
  connection->Start();
}

}  // namespace kvasir
