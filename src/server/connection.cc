#include "server/connection.h"

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "http/http_text.h"
#include "http/https_stream.h"
#include "http/plain_stream.h"
#include "http/request_reader.h"
#include "http/response_writer.h"
#include "server/connection_step.h"

namespace kvasir {
namespace {

// Returns true once a second: what anyone who reaches the port can cause must not fill the log.
bool IsFirstOfSecond() {
  static std::atomic<uint64_t> next_ns = 0;
  const uint64_t now = MonotonicNs();
  uint64_t next = next_ns.load(std::memory_order_relaxed);
  return now >= next && next_ns.compare_exchange_strong(next, now + 1'000'000'000);
}

namespace asio = boost::asio;
using ErrorCode = boost::system::error_code;

constexpr size_t kMaxLingerBytes = 64 << 20;  // dropped after an early answer
constexpr uint32_t kWriteTimeoutMs = 60000;
constexpr uint32_t kLingerTimeoutMs = 5000;

// States: (greeting, where TLS begins ->) idle -> reading -> busy (its Exchange finds and sends the
// answer) -> idle, or -> lingering (drops what the client still sends, so that it can read the
// answer) -> closed. One read at a time is pending: while busy, it notices when the client
// disconnects, and then the generation is cancelled. Bytes of the next request that come meanwhile
// wait in the reader, and the watch ends. A client is disconnected when a write takes
// kWriteTimeoutMs, or when its exchange says so. An exception in a handler ends only this
// connection (RunStep); Close never throws. The server may close the connection to make room until
// its request has been read, and while its client reads nothing of an answer. One strand.
class Connection : public ConnectionHandle,
                   public ExchangeHost,
                   public std::enable_shared_from_this<Connection> {
 public:
  Connection(asio::ip::tcp::socket socket, const ConnectionParts& parts)
      : strand_(socket.get_executor()),
        socket_(std::move(socket)),
        timer_(strand_),
        parts_(parts),
        tls_(parts.options.tls
                 ? std::make_unique<HttpsStream>(socket_, parts.options.tls->certificate())
                 : nullptr) {}

  void Start() {
    asio::post(strand_, [self = shared_from_this()] {
      self->RunStep([&] { self->tls_ ? self->BeginTls() : self->AwaitRequest(); });
    });
  }

  void Finish() override {
    asio::post(strand_, [self = shared_from_this()] {
      self->finishing_ = true;
      if (self->state_ < State::kBusy) self->Close();
    });
  }

  void CheckKey() override {
    asio::post(strand_, [self = shared_from_this()] {
      self->RunStep([&] {
        if (self->exchange_ && self->state_ == State::kBusy) self->exchange_->CheckKey();
      });
    });
  }

  void CloseForRoom() override {
    asio::post(strand_, [self = shared_from_this()] {
      if (self->parts_.connections.IsClosing(self.get())) self->Close();
    });
  }

 private:
  enum class State { kGreeting, kIdle, kReading, kBusy, kLingering, kClosed };

  // Runs a handler; an exception ends the connection.
  template <typename Handler>
  void RunStep(Handler&& handler) noexcept {
    if (!RunLogged(handler)) Close();
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
      self_->RunStep([&] { handler_(args...); });
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
      self->RunStep([&] { self->OnDeadline(); });
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

  // --- TLS

  // Begins TLS. The client has as long as for the head of a request.
  void BeginTls() {
    if (finishing_) return Close();
    state_ = State::kGreeting;
    parts_.connections.Set(this, Waits::kForRest);
    SetDeadline(parts_.options.read_timeout_ms);
    tls_->Handshake(Then([this](ErrorCode ec, size_t) { OnTls(ec); }));
  }

  void OnTls(ErrorCode ec) {
    if (state_ == State::kClosed) return;
    if (!ec) return AwaitRequest();
    if (ec != asio::error::eof) {  // a client that only looks whether the port is open says nothing
      Log(IsFirstOfSecond() ? LogLevel::kInfo : LogLevel::kDebug, "a client could not begin TLS",
          LogField("client", PeerAddress()), LogField("reason", tls_->fault()));
    }
    Close();
  }

  ByteStream& stream() { return tls_ ? static_cast<ByteStream&>(*tls_) : plain_; }

  // --- reading

  void AwaitRequest() {
    if (finishing_) return Close();
    state_ = State::kIdle;
    parts_.connections.Set(this, Waits::kForRequest);
    SetDeadline(parts_.options.idle_timeout_ms);
    ReadHeadOrMore();
  }

  void ReadHeadOrMore() { reader_.AtRequest() ? ReadHead() : ReadSome(); }

  void ReadSome() {
    if (reader_.reading_some()) return;  // that read continues
    if (half_closed_) {                  // the event does not come again
      return asio::post(strand_, [self = shared_from_this()] {
        self->RunStep([&] { self->OnSome(asio::error::eof, 0); });
      });
    }
    reader_.ReadSome(Then([this](ErrorCode ec, size_t bytes) { OnSome(ec, bytes); }));
  }

  void OnSome(ErrorCode ec, size_t bytes) {
    if (state_ == State::kClosed) return;
    // A half-closed connection ends a generation; the client can still read other answers.
    if (ec == asio::error::eof && exchange_ && !exchange_->EndsWithClient()) {
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
    parts_.connections.Set(this, Waits::kForRest);
    late_ = false;
    exchange_ = std::make_shared<Exchange>(parts_, shared_from_this(), strand_, writer_);
    SetDeadline(parts_.options.read_timeout_ms);
    reader_.ReadHead(Then([this](ErrorCode ec, size_t) { OnHead(ec); }));
  }

  void OnHead(ErrorCode ec) {
    if (state_ == State::kClosed) return;
    if (ec) return Refuse(ec);
    RequestHead head = reader_.Head();
    if (tls_ && tls_->is_plain()) {
      head.refusal =
          Error{Code::kInvalidArgument, "this port speaks https; begin the address with https://"};
    }
    const bool is_whole = head.whole;
    if (auto refusal = exchange_->TakeHead(std::move(head))) {
      state_ = State::kBusy;
      return exchange_->Respond(std::move(*refusal));
    }
    is_whole ? OnWhole() : ReadBody();
  }

  void ReadBody() {
    late_ = false;
    SetDeadline(parts_.options.read_timeout_ms);
    reader_.ReadBody(exchange_->max_body_bytes(),
                     Then([this](ErrorCode ec, size_t) { OnBody(ec); }));
  }

  void OnBody(ErrorCode ec) {
    if (state_ == State::kClosed) return;
    if (ec) return Refuse(ec);
    exchange_->TakeBody(reader_.TakeBody());
    OnWhole();
  }

  void OnWhole() {
    reader_.DropRequest();
    state_ = State::kBusy;
    parts_.connections.Set(this, Waits::kNot);
    ClearDeadline();
    exchange_->Dispatch();
  }

  // Ends the connection after an unreadable request, with an answer if the client may still see it.
  void Refuse(ErrorCode ec) {
    std::optional<Error> error = ReadError(ec, exchange_->max_body_bytes());
    if (late_) error = Error{Code::kDeadlineExceeded, "did not arrive in time", "request"};
    if (!error) return Close();  // the client is gone
    state_ = State::kBusy;
    exchange_->RespondToUnread(*error);
  }

  // --- what the exchange asks for

  void Send() override {
    if (!writer_.writing()) Write();
  }

  void WatchClient() override {
    if (!reader_.has_bytes()) ReadSome();
  }

  bool is_finishing() const override { return finishing_; }

  std::string PeerAddress() const override {
    ErrorCode ec;
    const auto peer = socket_.remote_endpoint(ec);
    return ec ? "-" : peer.address().to_string();
  }

  // --- writing

  void Write() {
    SetDeadline(kWriteTimeoutMs);
    parts_.connections.Set(this, Waits::kForClient);
    writer_.Write(Then([this](ErrorCode ec) { OnWritten(ec); }));
  }

  void OnWritten(ErrorCode ec) {
    if (state_ == State::kClosed) return;
    if (ec) return Close();
    exchange_->OnSent();
    if (writer_.Advance()) return Write();
    parts_.connections.Set(this, Waits::kNot);
    ClearDeadline();
    if (!writer_.ended()) return;
    writer_.NextAnswer();
    const bool keeps_alive = exchange_->End();
    exchange_.reset();
    keeps_alive && !finishing_ ? AwaitRequest() : Linger();
  }

  // --- ending

  // Reads on for a time: closing with unread bytes would reset the connection and lose the answer.
  void Linger() {
    state_ = State::kLingering;
    parts_.connections.Set(this, Waits::kForRequest);
    ErrorCode ignored;
    if (tls_) tls_->EndSending();
    socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
    SetDeadline(kLingerTimeoutMs);
    reader_.DropBytes();
    reader_.DropRequest();
    ReadSome();
  }

  // Leaves exchange_ in place: one of its functions may be the caller.
  void Close() noexcept override {
    if (state_ == State::kClosed) return;
    const bool is_answering = state_ == State::kBusy;
    if (tls_ && state_ == State::kIdle) tls_->EndSending();
    state_ = State::kClosed;
    if (exchange_) exchange_->Cut(is_answering);
    RunQuietly([&] { timer_.cancel(); });
    ErrorCode ignored;
    socket_.close(ignored);
    parts_.connections.Remove(this);
  }

  const asio::any_io_executor strand_;
  asio::ip::tcp::socket socket_;
  asio::steady_timer timer_;
  const ConnectionParts parts_;
  const std::unique_ptr<HttpsStream> tls_;  // null: plain HTTP
  PlainStream plain_{socket_};

  State state_ = State::kIdle;
  bool finishing_ = false;    // the server is stopping
  bool late_ = false;         // the deadline of the request that is being read has passed
  bool half_closed_ = false;  // the client sends nothing more, but may still read
  size_t lingered_bytes_ = 0;
  RequestReader reader_{stream()};
  ResponseWriter writer_{stream()};
  std::shared_ptr<Exchange> exchange_;  // from the first byte of a request until it is answered
};

}  // namespace

void StartConnection(asio::ip::tcp::socket socket, const ConnectionParts& parts) {
  ErrorCode ignored;
  socket.set_option(asio::ip::tcp::no_delay(true), ignored);  // send each token at once
  auto connection = std::make_shared<Connection>(std::move(socket), parts);
  parts.connections.Add(connection);
  try {
    connection->Start();
  } catch (...) {  // no memory for its first handler: without this it would never end
    parts.connections.Remove(connection.get());
    throw;
  }
}

}  // namespace kvasir
