#include "access/browser_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <charconv>

#include "base/ascii.h"
#include "base/result.h"

namespace kvasir {
namespace {

constexpr std::string_view kAny = "*", kNone = "none", kLoopback = "localhost";

bool HasOnly(std::string_view text, std::string_view others) {
  return std::all_of(text.begin(), text.end(),
                     [others](char c) { return IsAsciiAlnum(c) || others.find(c) != others.npos; });
}

std::optional<boost::asio::ip::address> AddressOf(std::string_view host) {
  if (host.starts_with('[')) host = host.substr(1, host.size() - 2);
  boost::system::error_code error;
  const auto address = boost::asio::ip::make_address(std::string(host), error);
  if (error) return std::nullopt;
  return address;
}

bool IsIpv6(std::string_view host) {
  const auto address = AddressOf(host);
  return address && address->is_v6() && host.find('%') == host.npos;
}

std::optional<uint16_t> DefaultPort(std::string_view scheme) {
  if (scheme == "http") return 80;
  if (scheme == "https") return 443;
  return std::nullopt;
}

}  // namespace

std::optional<Authority> ParseAuthority(std::string_view given) {
  const std::string text = LowerAscii(given);
  size_t end = text.find(':');
  if (text.starts_with('[')) {
    end = text.find(']');
    if (end == text.npos || !IsIpv6(std::string_view(text).substr(0, ++end))) return std::nullopt;
  } else {
    end = std::min(end, text.size());
    if (end == 0 || !HasOnly(std::string_view(text).substr(0, end), "-._")) return std::nullopt;
  }
  Authority authority{text.substr(0, end), std::nullopt};
  const std::string_view rest = std::string_view(text).substr(end);
  if (rest.empty() || rest == ":") return authority;
  uint16_t port = 0;
  const auto [last, error] = std::from_chars(rest.data() + 1, rest.data() + rest.size(), port);
  if (rest[0] != ':' || error != std::errc() || last != rest.data() + rest.size()) {
    return std::nullopt;
  }
  authority.port = port;
  return authority;
}

bool IsLoopbackHost(std::string_view host) {
  if (const auto address = AddressOf(host)) {
    if (address->is_v4() || !address->to_v6().is_v4_mapped()) return address->is_loopback();
    return make_address_v4(boost::asio::ip::v4_mapped, address->to_v6()).is_loopback();
  }
  if (host.ends_with('.')) host.remove_suffix(1);  // an absolute DNS name is the same host
  return host == kLoopback || (host.size() > kLoopback.size() + 1 && host.ends_with(".localhost"));
}

std::optional<Origin> ParseOrigin(std::string_view text) {
  const size_t colon = text.find("://");
  if (colon == text.npos) return std::nullopt;
  Origin origin{LowerAscii(text.substr(0, colon)), {}};
  if (origin.scheme.empty() || origin.scheme[0] < 'a' || !HasOnly(origin.scheme, "+-.")) {
    return std::nullopt;
  }
  const auto authority = ParseAuthority(text.substr(colon + 3));
  if (!authority || text.ends_with(':')) return std::nullopt;
  origin.authority = *authority;
  if (origin.authority.port == DefaultPort(origin.scheme)) origin.authority.port.reset();
  return origin;
}

Status CheckCorsOrigins(const std::vector<std::string>& origins) {
  for (const std::string& origin : origins) {
    if (origin == kAny || origin == kNone) {
      if (origins.size() == 1) continue;
      return FailField(Code::kInvalidArgument, "cors_origin",
                       "'{}' cannot be combined with other origins; give it alone, or leave it out",
                       origin);
    }
    if (origin == kLoopback || ParseOrigin(origin)) continue;
    return FailField(Code::kInvalidArgument, "cors_origin",
                     "'{}' is not an origin; write SCHEME://HOST or SCHEME://HOST:PORT "
                     "without a path, such as https://app.example; or localhost, *, none",
                     origin);
  }
  return {};
}

Status CheckAllowedHosts(const std::vector<std::string>& hosts) {
  for (const std::string& host : hosts) {
    const auto authority = ParseAuthority(host);
    if ((authority && !authority->port && !host.ends_with(':')) || IsIpv6(host)) continue;
    return FailField(Code::kInvalidArgument, "allowed_host",
                     "'{}' is not a host; write a name or an address without scheme and "
                     "port, such as chat.example",
                     host);
  }
  return {};
}

BrowserRules::BrowserRules(const std::vector<std::string>& cors_origins,
                           const std::vector<std::string>& allowed_hosts)
    : checks_hosts_(!allowed_hosts.empty()),
      any_origin_(cors_origins.empty() || cors_origins[0] == kAny) {
  for (const std::string& host : allowed_hosts) {
    const bool bare = !host.starts_with('[') && IsIpv6(host);
    hosts_.push_back(bare ? "[" + LowerAscii(host) + "]" : LowerAscii(host));
  }
  for (const std::string& text : cors_origins) {
    if (text == kLoopback) loopback_origins_ = true;
    if (auto origin = ParseOrigin(text)) origins_.push_back(std::move(*origin));
  }
}

std::optional<Error> BrowserRules::Check(const std::optional<std::string>& host,
                                         std::string_view origin) const {
  if (checks_hosts_ && host) {
    const auto authority = ParseAuthority(*host);
    const bool allowed = authority && (IsLoopbackHost(authority->host) ||
                                       std::ranges::count(hosts_, authority->host) > 0);
    if (!allowed) {
      return Error{Code::kPermissionDenied,
                   fmt::format("this server does not answer to '{}'; ask it as localhost, or start "
                               "it with --allowed-host NAME",
                               *host),
                   "host"};
    }
  }
  if (any_origin_ || origin.empty()) return std::nullopt;
  const auto from = ParseOrigin(origin);
  if (from && (IsListed(*from) || IsOwn(*from, host))) return std::nullopt;
  return Error{Code::kPermissionDenied,
               fmt::format("pages of {} may not call this server; --cors-origin names those that "
                           "may",
                           from ? origin : "an origin that is not SCHEME://HOST"),
               "origin"};
}

std::string BrowserRules::AllowedOrigin(std::string_view origin) const {
  if (any_origin_) return std::string(kAny);
  const auto from = ParseOrigin(origin);
  return from && IsListed(*from) ? std::string(origin) : "";
}

bool BrowserRules::IsListed(const Origin& origin) const {
  if (std::ranges::count(origins_, origin) > 0) return true;
  return loopback_origins_ && DefaultPort(origin.scheme) && IsLoopbackHost(origin.authority.host);
}

// Compares only name and port: the scheme may be that of a TLS proxy in front of the server, but
// name and port are those that the browser used.
bool BrowserRules::IsOwn(const Origin& origin, const std::optional<std::string>& host) const {
  const auto standard = DefaultPort(origin.scheme);
  const auto own = host ? ParseAuthority(*host) : std::nullopt;
  return standard && own && own->host == origin.authority.host &&
         own->port.value_or(*standard) == origin.authority.port.value_or(*standard);
}

}  // namespace kvasir
