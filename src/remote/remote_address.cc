#include "remote/remote_address.h"

#include <fmt/format.h>

#include <charconv>
#include <string_view>

#include "base/result.h"

namespace kvasir {
namespace {

template <typename T>
bool ReadNumber(std::string_view text, T most, T* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size() && *number <= most;
}

}  // namespace

std::string RemoteAddress::text() const {
  const bool is_v6 = host.find(':') != std::string::npos;
  return (is_v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

Result<RemoteAddress> ParseRemoteAddress(const std::string& url) {
  constexpr std::string_view kPlain = "redis://", kTls = "rediss://";
  const auto wrong = [&](std::string_view why) {
    return FailField(Code::kInvalidArgument, "remote",
                     "{}; give redis://HOST:PORT or rediss://HOST:PORT", why);
  };
  std::string_view rest = url;
  RemoteAddress address;
  address.has_tls = rest.starts_with(kTls);
  if (!address.has_tls && !rest.starts_with(kPlain)) {
    return wrong(
        fmt::format("unknown scheme in '{}' (known: redis, rediss)",
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
    if (!database.empty() && !ReadNumber<uint32_t>(database, 65535, &address.database)) {
      return wrong(fmt::format("'{}' is not the number of a database", database));
    }
    rest = rest.substr(0, slash);
  }
  const size_t bracket = rest.rfind(']');
  const size_t colon = rest.rfind(':');
  if (colon != std::string_view::npos && (bracket == std::string_view::npos || colon > bracket)) {
    const std::string_view port = rest.substr(colon + 1);
    if (!ReadNumber<uint16_t>(port, 65535, &address.port) || address.port == 0) {
      return wrong(fmt::format("'{}' is not a port", port));
    }
    rest = rest.substr(0, colon);
  }
  if (rest.starts_with('[') && rest.ends_with(']')) rest = rest.substr(1, rest.size() - 2);
  if (rest.empty()) return wrong("it names no host");
  address.host = rest;
  return address;
}

}  // namespace kvasir
