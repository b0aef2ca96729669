// BrowserRules: which host names the server serves, and which web pages may call it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "http/errors.h"
#include "kvasir/status.h"

namespace kvasir {

// "host", "host:8080" or "[::1]:8080", in lower case; a name, or an address.
struct Authority {
  std::string host;  // an IPv6 address in its brackets
  std::optional<uint16_t> port;

  bool operator==(const Authority&) const = default;
};
// Absent when `text` is not an authority: a character that is not allowed, no host, an invalid
// port.
std::optional<Authority> ParseAuthority(std::string_view text);
// Tells whether the name always means this machine: localhost, *.localhost, 127.0.0.0/8, ::1.
bool IsLoopbackHost(std::string_view host);

// The origin of a page: "https://app.example", "http://127.0.0.1:3000". In lower case, without
// the default port of its scheme.
struct Origin {
  std::string scheme;
  Authority authority;

  bool operator==(const Origin&) const = default;
};
// Absent when `text` is not an origin: "null", a path or a slash at the end, no scheme, spaces.
std::optional<Origin> ParseOrigin(std::string_view text);

// kInvalidArgument with the field "cors_origin" or "allowed_host" when a value cannot be used. An
// origin is SCHEME://HOST[:PORT] or a keyword: "*" (all), "none", "localhost" (every loopback
// origin, on any port). "*" and "none" cannot be combined with other origins.
Status CheckCorsOrigins(const std::vector<std::string>& origins);
Status CheckAllowedHosts(const std::vector<std::string>& hosts);

// Immutable except for ListensOnLoopback, which must be called before the first request; then
// thread-safe.
//
// Names: a web page can point its own name to the address 127.0.0.1 (DNS rebinding); for the
// browser it then has the same origin as this server. So a server that listens only on loopback
// serves only names of loopback and `allowed_hosts`; another server serves all names, unless
// allowed_hosts are given.
//
// Pages: by default any page may call. With cors_origins every request from a page of another
// origin is refused: a browser sends a POST of text/plain without asking first, and a request whose
// answer the page cannot read would still cost time and memory.
class BrowserRules {
 public:
  // REQUIRES: CheckCorsOrigins and CheckAllowedHosts accept the lists.
  BrowserRules(const std::vector<std::string>& cors_origins,
               const std::vector<std::string>& allowed_hosts);
  void ListensOnLoopback() { checks_hosts_ = true; }

  // Returns why the request gets nothing: kPermissionDenied, of the field "host" or "origin".
  // `host`: of the request's target or its Host header; absent in HTTP/1.0, which no browser
  // speaks. `origin`: its Origin header; "": it has none.
  std::optional<Error> Check(const std::optional<std::string>& host, std::string_view origin) const;

  // Returns the value of Access-Control-Allow-Origin for a request with this Origin; "": no such
  // header.
  std::string AllowedOrigin(std::string_view origin) const;
  bool any_origin() const { return any_origin_; }

 private:
  bool IsListed(const Origin& origin) const;
  bool IsOwn(const Origin& origin, const std::optional<std::string>& host) const;

  bool checks_hosts_;
  std::vector<std::string> hosts_;
  bool any_origin_;
  bool loopback_origins_ = false;
  std::vector<Origin> origins_;
};

}  // namespace kvasir
