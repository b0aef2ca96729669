#include "http/request_reader.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <string_view>
#include <utility>

#include "http/http_text.h"
#include "http/request_memory.h"

namespace kvasir {

namespace beast = boost::beast;
namespace http = beast::http;

namespace {

constexpr size_t kReadBytes = 16 << 10;
// Limit of bytes that the parser has not consumed yet. Neither header_limit nor body_limit counts
// chunk extensions and trailers, and Beast throws at a field of 64 KiB.
constexpr size_t kBufferBytes = kHeadBytes + kReadBytes;
static_assert(kBufferBytes < 60 << 10);

std::string Text(beast::string_view text) { return {text.data(), text.size()}; }

}  // namespace

struct RequestReader::State {
  beast::flat_buffer buffer{kBufferBytes};
  std::optional<http::request_parser<http::string_body>> parser;
};

RequestReader::RequestReader(ByteStream& stream)
    : stream_(stream), state_(std::make_unique<State>()) {}

RequestReader::~RequestReader() = default;

bool RequestReader::AtRequest() {
  beast::flat_buffer& buffer = state_->buffer;
  const auto starts_with = [&buffer](std::string_view text) {
    return std::string_view(static_cast<const char*>(buffer.data().data()), buffer.size())
        .starts_with(text);
  };
  while (starts_with("\r\n")) buffer.consume(2);
  return buffer.size() > 1 || (buffer.size() == 1 && !starts_with("\r"));
}

bool RequestReader::has_bytes() const { return state_->buffer.size() > 0; }

void RequestReader::DropBytes() { state_->buffer.clear(); }

void RequestReader::DropRequest() {
  state_->parser.reset();
  if (pending_) return;  // the read goes into the buffer
  beast::flat_buffer& buffer = state_->buffer;
  const auto unused = buffer.prepare(buffer.capacity() - buffer.size());  // moves what stays
  OPENSSL_cleanse(unused.data(), unused.size());
}

void RequestReader::ReadSome(Done done) {
  if (pending_) return;
  pending_ = true;
  stream_.ReadSome(state_->buffer.prepare(kReadBytes),
                   [this, done = std::move(done)](ErrorCode ec, size_t bytes) {
                     pending_ = false;
                     state_->buffer.commit(bytes);
                     done(ec, bytes);
                   });
}

// Returns need_more until the part is read.
RequestReader::ErrorCode RequestReader::Parse(Part part) {
  beast::flat_buffer& buffer = state_->buffer;
  auto& parser = *state_->parser;
  const auto is_read = [&parser, part] {
    return part == Part::kHead ? parser.is_header_done() : parser.is_done();
  };
  ErrorCode ec;
  while (!ec && !is_read()) {
    if (buffer.size() == 0) return http::error::need_more;
    buffer.consume(parser.put(buffer.data(), ec));
  }
  return ec;
}

void RequestReader::ReadPart(Part part, Done done) {
  state_->parser->eager(part == Part::kWhole);
  const ErrorCode ec = Parse(part);
  if (ec == http::error::need_more) return TakeBytes(part, std::move(done), ec, 0);
  boost::asio::post(stream_.executor(), [done = std::move(done), ec] { done(ec, 0); });
}

// Goes on after a read, or with the first one of a part (need_more).
void RequestReader::TakeBytes(Part part, Done done, ErrorCode ec, size_t bytes) {
  beast::flat_buffer& buffer = state_->buffer;
  buffer.commit(bytes);
  if (!ec) ec = Parse(part);
  if (ec == boost::asio::error::eof) {
    ec = http::error::end_of_stream;
    if (state_->parser->got_some()) state_->parser->put_eof(ec = {});
  }
  if (ec != http::error::need_more) return done(ec, 0);
  constexpr size_t kLeastBytes = 512;
  const size_t room = std::min(std::max(kLeastBytes, buffer.capacity() - buffer.size()),
                               buffer.max_size() - buffer.size());
  if (room == 0) return done(http::error::buffer_overflow, 0);
  stream_.ReadSome(buffer.prepare(room),
                   [this, part, done = std::move(done)](ErrorCode error, size_t got) mutable {
                     TakeBytes(part, std::move(done), error, got);
                   });
}

void RequestReader::ReadHead(Done done) {
  auto& parser = state_->parser.emplace();
  parser.header_limit(kHeadBytes);
  parser.body_limit(boost::none);  // our limit applies once the head is accepted
  ReadPart(Part::kHead, std::move(done));
}

RequestHead RequestReader::Head() const {
  const auto& parser = *state_->parser;
  const auto& fields = parser.get();
  const auto field = [&fields](auto name) { return Text(fields[name]); };
  RequestHead head;
  head.request.method = Text(fields.method_string());
  head.request.target = OriginForm(Text(fields.target()));
  head.request.authorization = field(http::field::authorization);
  head.request.api_key = field("x-api-key");
  head.request.content_type = field(http::field::content_type);
  head.request.id = field("x-request-id");
  head.request.timeout_ms = field("x-request-timeout-ms");
  head.request.host = HostOfTarget(Text(fields.target()));
  if (!head.request.host && fields.count(http::field::host) > 0) {
    head.request.host = field(http::field::host);
  }
  const auto joined = [&fields](auto name) {
    std::string text;
    const auto [first, end] = fields.equal_range(name);
    for (auto it = first; it != end; ++it) text += (it == first ? "" : ", ") + Text(it->value());
    return text;
  };
  head.request.origin = joined(http::field::origin);
  head.request.traceparent = joined("traceparent");
  head.request.accepts_html = joined(http::field::accept).find("text/html") != std::string::npos;
  head.request.requested_headers = field(http::field::access_control_request_headers);
  head.is_head = head.request.method == "HEAD";
  if (const auto length = parser.content_length()) head.body_bytes = *length;
  head.refusal = CheckFraming(fields);
  if (!head.refusal) head.refusal = CheckHost(fields);
  if (!head.refusal) head.refusal = CheckContentEncoding(fields);
  head.version = fields.version() >= 11 ? HttpVersion::k11 : HttpVersion::k10;
  head.keep_alive = fields.keep_alive();
  head.whole = parser.is_done();
  return head;
}

void RequestReader::ReadBody(uint64_t max_bytes, Done done) {
  auto& parser = *state_->parser;
  parser.body_limit(max_bytes);
  const auto read = [this, done = std::move(done)](ErrorCode ec, size_t bytes) {
    ec ? done(ec, bytes) : ReadPart(Part::kWhole, done);
  };
  const auto& fields = parser.get();
  if (fields.version() < 11 || !beast::iequals(fields[http::field::expect], "100-continue")) {
    return read({}, 0);
  }
  static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
  stream_.Write(boost::asio::buffer(kContinue), read);
}

std::string RequestReader::TakeBody() { return std::move(state_->parser->get().body()); }

}  // namespace kvasir
