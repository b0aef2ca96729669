#include "remote/remote_address.h"

#include <fmt/format.h>

#include <optional>
#include <string_view>

#include "base/result.h"
#include "base/sizes.h"

namespace kvasir {

std::string RemoteAddress::text() const {
  const bool is_v6 = host.find(':') != std::string::npos;
  std::string text = (is_v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
  if (!s3) return text;
  if (!s3->is_in_host) text += "/" + s3->name;
  if (!s3->prefix.empty()) text += "/" + s3->prefix.substr(0, s3->prefix.size() - 1);
  return text;
}

bool ReadHostAndPort(std::string_view text, RemoteAddress* address) {
  const size_t bracket = text.rfind(']'), colon = text.rfind(':');
  if (colon != std::string_view::npos && (bracket == std::string_view::npos || colon > bracket)) {
    const std::optional<uint64_t> port = ParseUint(text.substr(colon + 1));
    if (!port || *port == 0 || *port > UINT16_MAX) return false;
    address->port = static_cast<uint16_t>(*port);
    text = text.substr(0, colon);
  }
  if (text.starts_with('[') && text.ends_with(']')) text = text.substr(1, text.size() - 2);
  address->host = text;
  return !text.empty();
}

Result<RemoteAddress> ParseRemoteAddress(const std::string& url) {
  constexpr std::string_view kPlain = "redis://", kTls = "rediss://";
  const auto wrong = [&](std::string_view why) {
    return FailField(Code::kInvalidArgument, "remote",
                     "{}; give redis://HOST:PORT, rediss://HOST:PORT or s3://BUCKET/PREFIX", why);
  };
  std::string_view rest = url;
  if (constexpr std::string_view kS3 = "s3://"; rest.starts_with(kS3)) {
    return ParseS3Address(rest.substr(kS3.size()));
  }
  RemoteAddress address;
  address.has_tls = rest.starts_with(kTls);
  if (!address.has_tls && !rest.starts_with(kPlain)) {
    return wrong(
        fmt::format("unknown scheme in '{}' (known: redis, rediss, s3)",
                    url.substr(0, url.find("://") == std::string::npos ? 0 : url.find("://"))));
  }
  rest.remove_prefix((address.has_tls ? kTls : kPlain).size());
  if (const size_t at = rest.rfind('@'); at != std::string_view::npos) {
    if (rest.substr(0, at).find(':') != std::string_view::npos) {
      return FailField(Code::kInvalidArgument, "remote",
                       "a password in the URL would show in lists of processes; give it in the "
                       "variable REDISCLI_AUTH");
    }
    address.user = rest.substr(0, at);
    rest.remove_prefix(at + 1);
  }
  if (const size_t slash = rest.find('/'); slash != std::string_view::npos) {
    const std::string_view database = rest.substr(slash + 1);
    const std::optional<uint64_t> number = ParseUint(database);
    if (!database.empty() && (!number || *number > UINT16_MAX)) {
      return wrong(fmt::format("'{}' is not the number of a database", database));
    }
    if (number) address.database = static_cast<uint32_t>(*number);
    rest = rest.substr(0, slash);
  }
  if (!ReadHostAndPort(rest, &address)) {
    const bool has_host = !rest.empty() && !rest.starts_with(':');
    return wrong(has_host ? fmt::format("'{}' is not a host with a port", rest)
                          : "it names no host");
  }
  return address;
}

}  // namespace kvasir
