// HTTP/1.1 as text: headers of answers, and errors of reading a request.
#pragma once

#include <boost/beast/http/message.hpp>
#include <boost/system/error_code.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "http/errors.h"

namespace kvasir {

enum class HttpVersion { k10, k11 };
// The end of the connection after an answer.
enum class AfterAnswer { kClose, kKeepAlive };

// Returns the status line and headers, each with its line end; without the empty line.
std::string HeadText(int status, std::string_view content_type, AfterAnswer after,
                     const std::vector<std::pair<std::string, std::string>>& headers);

// Returns the framing of a body of unknown length: the header and the empty line, one piece, the
// end. Chunked only in HTTP/1.1.
std::string ChunkedHeader(HttpVersion version);
std::string ChunkText(const std::string& text, HttpVersion version);
std::string LastChunkText(HttpVersion version);

// Returns why a request's body must not be read: with a transfer coding other than chunked, or with
// two lengths, this server and a proxy could disagree about its end (RFC 9112, section 6.3).
std::optional<Error> CheckFraming(const boost::beast::http::request_header<>& head);
// Refuses a body that is compressed (415).
std::optional<Error> CheckContentEncoding(const boost::beast::http::request_header<>& head);

// Returns why a request does not name exactly one host (RFC 9112, section 3.2): no Host (allowed in
// HTTP/1.0), two of them, or a character that a host or port cannot have.
std::optional<Error> CheckHost(const boost::beast::http::request_header<>& head);

// Returns the host and port of an absolute target: "http://x:1/health" has "x:1". Absent for other
// targets.
std::optional<std::string> HostOfTarget(std::string_view target);

// `target` without the scheme and the host of its absolute form: "http://x/health" is "/health".
std::string OriginForm(std::string_view target);

// Returns the answer to a request that could not be read; nullopt when the client is gone.
std::optional<Error> ReadError(const boost::system::error_code& error, uint64_t max_body_bytes);

}  // namespace kvasir
