#include "remote/aws_signature.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <span>

#include "base/ascii.h"
#include "base/digest.h"
#include "base/hex.h"

namespace kvasir {
namespace {

constexpr std::string_view kAlgorithm = "AWS4-HMAC-SHA256", kService = "s3", kEnd = "aws4_request";

std::span<const uint8_t> KeyBytes(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

Digest HmacOf(std::span<const uint8_t> key, std::string_view text) {
  return HmacKey(key).Of(std::as_bytes(std::span(text)));
}

std::string EncodedPath(std::string_view path) {
  std::string encoded;
  while (!path.empty()) {
    const size_t end = std::min(path.find('/'), path.size());
    encoded += AwsEncoded(path.substr(0, end));
    if (end < path.size()) encoded += '/';
    path.remove_prefix(std::min(end + 1, path.size()));
  }
  return encoded;
}

std::string SortedQuery(const AwsRequest& request) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const auto& [name, value] : request.query) {
    pairs.emplace_back(AwsEncoded(name), AwsEncoded(value));
  }
  std::ranges::sort(pairs);
  std::string text;
  for (const auto& [name, value] : pairs) {
    text += fmt::format("{}{}={}", text.empty() ? "" : "&", name, value);
  }
  return text;
}

// Removes spaces at both ends, and makes several between words one.
std::string SingleSpaced(std::string_view value) {
  std::string text;
  for (const char c : value) {
    if (c != ' ' || (!text.empty() && text.back() != ' ')) text += c;
  }
  while (text.ends_with(' ')) text.pop_back();
  return text;
}

}  // namespace

std::string AwsEncoded(std::string_view text) {
  std::string encoded;
  for (const char c : text) {
    const bool is_plain = IsAsciiAlnum(c) || c == '-' || c == '.' || c == '_' || c == '~';
    if (is_plain) {
      encoded += c;
    } else {
      encoded += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return encoded;
}

std::string AwsTarget(const AwsRequest& request) {
  std::string target = EncodedPath(request.path);
  if (const std::string query = SortedQuery(request); !query.empty()) target += "?" + query;
  return target;
}

AwsHeaders SignedHeaders(const AwsRequest& request, const AwsCredentials& credentials,
                         std::string_view region, std::string_view time) {
  AwsHeaders headers = request.headers;
  headers.emplace_back("x-amz-date", time);
  headers.emplace_back("x-amz-content-sha256", request.payload_sha256);
  if (!credentials.session_token.empty()) {
    headers.emplace_back("x-amz-security-token", credentials.session_token);
  }
  std::ranges::sort(headers);
  std::string lines, names;
  for (const auto& [name, value] : headers) {
    lines += fmt::format("{}:{}\n", name, SingleSpaced(value));
    names += (names.empty() ? "" : ";") + name;
  }
  const std::string canonical =
      fmt::format("{}\n{}\n{}\n{}\n{}\n{}", request.method, EncodedPath(request.path),
                  SortedQuery(request), lines, names, request.payload_sha256);
  const std::string_view day = time.substr(0, 8);
  const std::string scope = fmt::format("{}/{}/{}/{}", day, region, kService, kEnd);
  const std::string text =
      fmt::format("{}\n{}\n{}\n{}", kAlgorithm, time, scope, ToHex(Sha256Of(canonical)));
  Digest key = HmacOf(KeyBytes("AWS4" + credentials.secret), day);
  for (const std::string_view part : {region, kService, kEnd}) key = HmacOf(key, part);
  headers.emplace_back(
      "authorization",
      fmt::format("{} Credential={}/{}, SignedHeaders={}, Signature={}", kAlgorithm,
                  credentials.key_id, scope, names, ToHex(HmacOf(key, text))));
  return headers;
}

std::string AwsTime(int64_t unix_s) {
  const auto seconds = static_cast<std::time_t>(unix_s);
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  char text[32];
  const size_t length = std::strftime(text, sizeof(text), "%Y%m%dT%H%M%SZ", &utc);
  return {text, length};
}

}  // namespace kvasir
