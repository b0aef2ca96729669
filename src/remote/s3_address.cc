// ParseRemoteAddress: s3://BUCKET/PREFIX?region=R&endpoint=URL.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "base/ascii.h"
#include "base/hex.h"
#include "base/result.h"
#include "remote/remote_address.h"

namespace kvasir {
namespace {

constexpr size_t kMostPrefix = 512;

bool HasOnly(std::string_view text, std::string_view more) {
  return std::ranges::all_of(
      text, [&](char c) { return IsAsciiAlnum(c) || more.find(c) != std::string_view::npos; });
}

// Absent: a percent sign without two digits after it.
std::optional<std::string> Unescaped(std::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      plain += text[i];
      continue;
    }
    if (i + 2 >= text.size()) return std::nullopt;
    const auto byte = HexByte(text[i + 1], text[i + 2], HexCase::kAny);
    if (!byte) return std::nullopt;
    plain += static_cast<char>(*byte);
    i += 2;
  }
  return plain;
}

template <typename... Args>
tl::unexpected<Error> WrongS3(fmt::format_string<Args...> format, Args&&... args) {
  return FailField(Code::kInvalidArgument, "remote",
                   "{}; give s3://BUCKET/PREFIX?region=REGION&endpoint=https://HOST:PORT",
                   fmt::format(format, std::forward<Args>(args)...));
}

Status TakeEndpoint(std::string_view url, RemoteAddress* address) {
  constexpr std::string_view kHttp = "http://", kHttps = "https://";
  address->has_tls = url.starts_with(kHttps);
  if (!address->has_tls && !url.starts_with(kHttp)) {
    return WrongS3("the endpoint '{}' is not an address of http or https", url);
  }
  address->port = address->has_tls ? 443 : 80;
  std::string_view rest = url.substr((address->has_tls ? kHttps : kHttp).size());
  if (rest.ends_with('/')) rest.remove_suffix(1);
  if (!HasOnly(rest, ".-_:[]") || !ReadHostAndPort(rest, address)) {
    return WrongS3("the endpoint '{}' is not a host, with or without a port", url);
  }
  return {};
}

}  // namespace

Result<RemoteAddress> ParseS3Address(std::string_view rest) {
  RemoteAddress address;
  S3Bucket bucket;
  std::string_view query;
  if (rest.find('@') != std::string_view::npos) {
    return FailField(Code::kInvalidArgument, "remote",
                     "credentials in the URL would show in lists of processes; give them in the "
                     "variables AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY");
  }
  if (const size_t mark = rest.find('?'); mark != std::string_view::npos) {
    query = rest.substr(mark + 1);
    rest = rest.substr(0, mark);
  }
  const size_t slash = std::min(rest.find('/'), rest.size());
  bucket.name = rest.substr(0, slash);
  std::string_view prefix = rest.substr(std::min(slash + 1, rest.size()));
  while (prefix.ends_with('/')) prefix.remove_suffix(1);
  if (bucket.name.size() < 3 || bucket.name.size() > 63 || !HasOnly(bucket.name, ".-")) {
    return WrongS3("'{}' is not a bucket's name", bucket.name);
  }
  const bool has_empty_part = prefix.starts_with('/') || prefix.find("//") != prefix.npos;
  if (prefix.size() > kMostPrefix || has_empty_part || !HasOnly(prefix, "._-/")) {
    return WrongS3("the prefix '{}' may have letters, digits and ._-/", prefix);
  }
  if (!prefix.empty()) bucket.prefix = std::string(prefix) + "/";
  bucket.region = "us-east-1";
  while (!query.empty()) {
    const size_t end = std::min(query.find('&'), query.size());
    const std::string_view one = query.substr(0, end);
    query.remove_prefix(std::min(end + 1, query.size()));
    const size_t equal = std::min(one.find('='), one.size());
    const std::string_view name = one.substr(0, equal);
    const auto value = Unescaped(one.substr(std::min(equal + 1, one.size())));
    if (!value) return WrongS3("'{}' has a % without two digits", one);
    if (name == "region") {
      if (value->empty() || !HasOnly(*value, "-_")) {
        return WrongS3("'{}' is not a region's name", *value);
      }
      bucket.region = *value;
    } else if (name == "endpoint") {
      KV_TRY(TakeEndpoint(*value, &address));
    } else {
      return WrongS3("unknown part '{}' (known: region, endpoint)", name);
    }
  }
  if (address.host.empty()) {
    // The certificate of AWS is not for a bucket with dots before its names.
    bucket.is_in_host = bucket.name.find('.') == std::string::npos;
    address.host = fmt::format("{}s3.{}.amazonaws.com", bucket.is_in_host ? bucket.name + "." : "",
                               bucket.region);
    address.port = 443;
    address.has_tls = true;
  }
  address.s3 = std::move(bucket);
  return address;
}

}  // namespace kvasir
