#include "hub/http_reply.h"

#include <algorithm>
#include <charconv>

#include "base/ascii.h"

namespace kvasir::hub {
namespace {

template <typename T>
std::optional<T> LeadingNumber(std::string_view text) {
  T value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  return result.ec == std::errc() ? std::optional(value) : std::nullopt;
}

std::string CleanEtag(std::string_view value) {
  if (value.starts_with("W/")) value.remove_prefix(2);
  if (value.size() >= 2 && value.front() == '"' && value.back() == '"') {
    value = value.substr(1, value.size() - 2);
  }
  return std::string(value);
}

void BeginResponse(std::string_view status_line, HttpReply& reply) {
  reply.was_redirected = reply.was_redirected || (reply.status >= 300 && reply.status < 400);
  reply.error_code.clear();
  reply.range_begin.reset();
  reply.retry_after_s.reset();
  const size_t space = std::min(status_line.find(' '), status_line.size());
  reply.status = LeadingNumber<int>(Trimmed(status_line.substr(space))).value_or(0);
}

}  // namespace

void TakeHeaderLine(std::string_view line, HttpReply& reply) {
  if (line.starts_with("HTTP/")) return BeginResponse(line, reply);
  const size_t colon = line.find(':');
  if (colon == line.npos) return;
  const std::string name = LowerAscii(line.substr(0, colon));
  const std::string_view value = Trimmed(line.substr(colon + 1));
  if (name == "x-linked-etag") {
    reply.etag = CleanEtag(value);
  } else if (name == "etag") {
    if (!reply.was_redirected && reply.etag.empty()) reply.etag = CleanEtag(value);
  } else if (name == "x-error-code") {
    reply.error_code = value;
  } else if (name == "retry-after") {
    reply.retry_after_s = LeadingNumber<uint32_t>(value);
  } else if (name == "content-range" && value.starts_with("bytes ")) {
    reply.range_begin = LeadingNumber<uint64_t>(value.substr(6));
  }
}

}  // namespace kvasir::hub
