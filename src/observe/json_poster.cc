#include "observe/json_poster.h"

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <utility>

#include "base/result.h"

namespace kvasir {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using ErrorCode = boost::system::error_code;
using Endpoints = asio::ip::tcp::resolver::results_type;

constexpr uint64_t kMaxAnswerBytes = 64 << 10;

// One POST: connect, write, read. `ended` has the outcome when the loop has run out of work.
class Exchange {
 public:
  Exchange(asio::io_context& io, http::request<http::string_body> request)
      : stream_(io), request_(std::move(request)) {
    parser_.body_limit(kMaxAnswerBytes);
  }

  void Begin(const Endpoints& endpoints, std::chrono::milliseconds timeout) {
    stream_.expires_after(timeout);  // of all three together
    stream_.async_connect(endpoints, [this](ErrorCode ec, const auto&) {
      if (ec) return End(ec);
      http::async_write(stream_, request_, [this](ErrorCode ec, size_t) {
        if (ec) return End(ec);
        http::async_read(stream_, buffer_, parser_, [this](ErrorCode ec, size_t) { End(ec); });
      });
    });
  }

  void Cancel() {
    ErrorCode ignored;
    stream_.socket().close(ignored);
  }

  ErrorCode ended;
  unsigned status() const { return parser_.get().result_int(); }

 private:
  void End(ErrorCode ec) { ended = ec; }

  beast::tcp_stream stream_;
  http::request<http::string_body> request_;
  beast::flat_buffer buffer_;
  http::response_parser<http::string_body> parser_;
};

}  // namespace

struct JsonPoster::Parts {
  asio::io_context io{1};
  Endpoints endpoints;
  std::string host, path;
  Exchange* current = nullptr;  // of the loop's thread
  std::atomic<bool> stopped{false};
};

JsonPoster::JsonPoster(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
JsonPoster::~JsonPoster() = default;

Result<std::unique_ptr<JsonPoster>> JsonPoster::Make(const std::string& host,
                                                     const std::string& port,
                                                     const std::string& path) {
  auto parts = std::make_unique<Parts>();
  ErrorCode ec;
  asio::ip::tcp::resolver resolver(parts->io);
  parts->endpoints = resolver.resolve(host, port, ec);
  if (ec) return Fail(Code::kNotFound, "cannot resolve '{}': {}", host, ec.message());
  const bool is_v6 = host.find(':') != std::string::npos;
  parts->host = (is_v6 ? "[" + host + "]" : host) + ":" + port;
  parts->path = path;
  return std::unique_ptr<JsonPoster>(new JsonPoster(std::move(parts)));
}

Status JsonPoster::Post(std::string body, std::chrono::milliseconds timeout) {
  http::request<http::string_body> request(http::verb::post, parts_->path, 11);
  request.set(http::field::host, parts_->host);
  request.set(http::field::content_type, "application/json");
  request.set(http::field::connection, "close");
  request.body() = std::move(body);
  request.prepare_payload();
  Exchange exchange(parts_->io, std::move(request));
  if (parts_->stopped) return Fail(Code::kCancelled, "stopped");
  parts_->current = &exchange;
  parts_->io.restart();
  exchange.Begin(parts_->endpoints, timeout);
  parts_->io.run();
  parts_->current = nullptr;
  if (exchange.ended == beast::error::timeout) {
    return Fail(Code::kDeadlineExceeded, "no answer in {} ms", timeout.count());
  }
  if (exchange.ended) return Fail(Code::kIoError, "{}", exchange.ended.message());
  if (exchange.status() / 100 != 2) {
    return Fail(Code::kIoError, "the collector answered {}", exchange.status());
  }
  return {};
}

void JsonPoster::Stop() {
  parts_->stopped = true;
  asio::post(parts_->io, [parts = parts_.get()] {
    if (parts->current != nullptr) parts->current->Cancel();
  });
}

}  // namespace kvasir
