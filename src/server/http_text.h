// HTTP/1.1 as text: heads of answers, and what reading a request can end with.
#pragma once

#include <boost/beast/http/message.hpp>
#include <boost/system/error_code.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/errors.h"

namespace kvasir {

// Status line and headers, each ended; not the empty line.
std::string HeadText(int status, std::string_view content_type, bool keep_alive,
                     const std::vector<std::pair<std::string, std::string>>& headers);

// Of a body whose length is not known: the header and the empty line, a piece, the end. Framed in
// HTTP/1.1 only.
std::string ChunkedHeader(bool http11);
std::string ChunkText(const std::string& text, bool http11);
std::string LastChunkText(bool http11);

// Why a request's body must not be read: with a transfer coding other than chunked, or two lengths,
// this server and a proxy in front of it could disagree on where it ends (RFC 9112, section 6.3).
std::optional<Error> CheckFraming(const boost::beast::http::request_header<>& head);

// Why a request names no one host (RFC 9112, section 3.2): without Host (HTTP/1.0 may), with two,
// or with a character that is in no host or port.
std::optional<Error> CheckHost(const boost::beast::http::request_header<>& head);

// The host and port of an absolute target: "http://x:1/health" has "x:1". Absent where it has none.
std::optional<std::string> HostOfTarget(std::string_view target);

// `target` without the scheme and the host of its absolute form: "http://x/health" is "/health".
std::string OriginForm(std::string_view target);

// What to answer to a request that could not be read; nullopt: the client is gone.
std::optional<Error> ReadError(const boost::system::error_code& error, uint64_t max_body_bytes);

}  // namespace kvasir
