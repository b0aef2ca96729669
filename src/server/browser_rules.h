// BrowserRules: which names the server answers to, and which pages may call it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/status.h"
#include "server/errors.h"

namespace kvasir {

// "host", "host:8080" or "[::1]:8080", in lower case; a name, or an address.
struct Authority {
  std::string host;  // an IPv6 address in its brackets
  std::optional<uint16_t> port;

  bool operator==(const Authority&) const = default;
};
// Absent where it is none: another character, no host, no port that can be.
std::optional<Authority> ParseAuthority(std::string_view text);
// Whether it names this machine and nothing else: localhost, *.localhost, 127.0.0.0/8, ::1.
bool IsLoopbackHost(std::string_view host);

// Where a page comes from: "https://app.example", "http://127.0.0.1:3000". In lower case; without
// the port that its scheme has anyway.
struct Origin {
  std::string scheme;
  Authority authority;

  bool operator==(const Origin&) const = default;
};
// Absent where it is none: "null", a path or a slash behind it, no scheme, spaces.
std::optional<Origin> ParseOrigin(std::string_view text);

// kInvalidArgument, of the field "cors_origin" or "allowed_host", where a value cannot be used:
// what is no origin and no keyword ("*": all, "none", "localhost": every loopback origin, on any
// port), keywords for all or none beside others, what is no host.
Status CheckCorsOrigins(const std::vector<std::string>& origins);
Status CheckAllowedHosts(const std::vector<std::string>& hosts);

// Immutable but for ListensOnLoopback, which is called before there are requests; then thread-safe.
//
// Names: somebody's page can give its own name the address 127.0.0.1 (DNS rebinding), and is then
// of the same origin as this server for the browser. So a server that listens on loopback alone
// answers only to names of loopback and to `allowed_hosts`; another one answers to all names,
// unless there are allowed_hosts.
//
// Pages: by default any page may call. With cors_origins a page of another origin gets nothing,
// whatever its request is: a browser sends a POST of text/plain without asking first, and a request
// whose answer the page cannot read would still cost time and memory.
class BrowserRules {
 public:
  // REQUIRES: lists that CheckCorsOrigins and CheckAllowedHosts let pass.
  BrowserRules(const std::vector<std::string>& cors_origins,
               const std::vector<std::string>& allowed_hosts);
  void ListensOnLoopback() { checks_hosts_ = true; }

  // Why the request gets nothing: kPermissionDenied, of the field "host" or "origin". `host`: of
  // the request's target or its Host header; absent in HTTP/1.0, which no browser speaks. `origin`:
  // its Origin header; "": it has none.
  std::optional<Error> Check(const std::optional<std::string>& host, std::string_view origin) const;

  // What a request with this Origin gets as Access-Control-Allow-Origin; "": nothing.
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
