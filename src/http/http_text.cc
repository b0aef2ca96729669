#include "http/http_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/status.hpp>
#include <iterator>

#include "http/request_memory.h"

namespace kvasir {

namespace http = boost::beast::http;

namespace {

Error InHead(std::string message) { return {Code::kInvalidArgument, std::move(message), "head"}; }

}  // namespace

std::string HeadText(int status, std::string_view content_type, AfterAnswer after,
                     const std::vector<std::pair<std::string, std::string>>& headers) {
  const auto reason = http::obsolete_reason(static_cast<http::status>(status));
  std::string head = fmt::format("HTTP/1.1 {} {}\r\nContent-Type: {}\r\nConnection: {}\r\n", status,
                                 std::string_view(reason.data(), reason.size()), content_type,
                                 after == AfterAnswer::kKeepAlive ? "keep-alive" : "close");
  for (const auto& [name, value] : headers) head += fmt::format("{}: {}\r\n", name, value);
  return head;
}

std::string ChunkedHeader(HttpVersion version) {
  return version == HttpVersion::k11 ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n";
}

std::string ChunkText(const std::string& text, HttpVersion version) {
  return version == HttpVersion::k11 ? fmt::format("{:x}\r\n{}\r\n", text.size(), text) : text;
}

std::string LastChunkText(HttpVersion version) {
  return version == HttpVersion::k11 ? "0\r\n\r\n" : "";
}

std::optional<Error> CheckFraming(const http::request_header<>& head) {
  const auto [begin, end] = head.equal_range(http::field::transfer_encoding);
  if (begin == end) return std::nullopt;
  if (head.count(http::field::content_length) > 0 || head.version() < 11) {
    return InHead("Transfer-Encoding needs HTTP/1.1, and no Content-Length beside it");
  }
  if (std::next(begin) != end || !boost::beast::iequals(begin->value(), "chunked")) {
    return Error{Code::kUnsupported, "chunked is the only one that is understood",
                 "transfer_encoding"};
  }
  return std::nullopt;
}

std::optional<Error> CheckContentEncoding(const http::request_header<>& head) {
  const auto [begin, end] = head.equal_range(http::field::content_encoding);
  for (auto it = begin; it != end; ++it) {
    if (it->value().empty() || boost::beast::iequals(it->value(), "identity")) continue;
    return Error{Code::kUnsupported, "bodies are read as they are; send the body uncompressed",
                 "content_encoding"};
  }
  return std::nullopt;
}

std::optional<Error> CheckHost(const http::request_header<>& head) {
  const auto [begin, end] = head.equal_range(http::field::host);
  if (begin == end) {
    if (head.version() < 11) return std::nullopt;
    return InHead("an HTTP/1.1 request needs a Host header");
  }
  if (std::next(begin) != end) return InHead("the request has more than one Host header");
  if (begin->value().find_first_of(" \t/?#@\\\"<>{}|^`") != begin->value().npos) {
    return InHead("the Host header has a character that a host or port cannot have");
  }
  return std::nullopt;
}

std::optional<std::string> HostOfTarget(std::string_view target) {
  const size_t host = target.find("://");
  if (target.starts_with('/') || host == std::string_view::npos) return std::nullopt;
  target.remove_prefix(host + 3);
  return std::string(target.substr(0, target.find_first_of("/?#")));
}

std::string OriginForm(std::string_view target) {
  const size_t host = target.find("://");
  if (target.starts_with('/') || host == std::string_view::npos) return std::string(target);
  const size_t path = std::min(target.find_first_of("/?#", host + 3), target.size());
  const std::string_view rest = target.substr(path);
  return rest.starts_with('/') ? std::string(rest) : "/" + std::string(rest);
}

std::optional<Error> ReadError(const boost::system::error_code& error, uint64_t max_body_bytes) {
  if (error == http::error::body_limit) {
    return Error{Code::kExhausted, fmt::format("has more than {} bytes", max_body_bytes), "body"};
  }
  if (error == http::error::header_limit || error == http::error::buffer_overflow) {
    return Error{Code::kExhausted, fmt::format("has more than {} bytes", kHeadBytes), "head"};
  }
  if (error == http::error::end_of_stream || error == http::error::partial_message ||
      error.category() != make_error_code(http::error::bad_method).category()) {
    return std::nullopt;
  }
  return InHead("not a valid HTTP request: " + error.message());
}

}  // namespace kvasir
