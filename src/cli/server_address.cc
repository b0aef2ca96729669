#include "cli/server_address.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "access/browser_rules.h"
#include "base/clock.h"
#include "base/result.h"
#include "base/sizes.h"
#include "cli/server_channel.h"

namespace kvasir::cli {
namespace {

constexpr uint64_t kPatienceNs = 5'000'000'000;
constexpr size_t kMaxAnswerBytes = 1 << 20;

std::optional<ServerAddress> ParseAddress(const std::string& url) {
  std::string_view rest = url;
  const bool has_tls = rest.starts_with("https://");
  if (has_tls || rest.starts_with("http://")) rest.remove_prefix(has_tls ? 8 : 7);
  while (rest.ends_with('/')) rest.remove_suffix(1);
  if (rest.ends_with("/v1")) rest.remove_suffix(3);  // what clients take as their base
  const bool is_ipv6 = rest.starts_with('[');
  const size_t colon = rest.find(':', is_ipv6 ? std::min(rest.find(']'), rest.size()) : 0);
  ServerAddress at{url, std::string(rest.substr(0, colon)), has_tls ? "443" : "80",
                   std::string(rest), has_tls};
  if (colon != rest.npos) at.port = rest.substr(colon + 1);
  if (is_ipv6 && at.host.ends_with(']')) at.host = at.host.substr(1, at.host.size() - 2);
  const auto port = ParseUint(at.port);
  const bool is_host = !at.host.empty() && std::ranges::all_of(at.host, [](char c) {
    return c > ' ' && c < '\x7f' && c != '/' && c != '[' && c != ']' && c != '@';
  });
  if (!is_host || !port || *port == 0 || *port > 65535) return std::nullopt;
  return at;
}

// Returns all that the server answers; the error says only why it does not.
Result<std::string> AnswerTo(const ServerAddress& at, const std::string& request, bool has_secret) {
  const uint64_t end_ns = MonotonicNs() + kPatienceNs;
  const bool is_verified = has_secret || !IsLoopbackHost(at.host);
  const ServerTls tls = !at.has_tls   ? ServerTls::kNone
                        : is_verified ? ServerTls::kVerified
                                      : ServerTls::kUnverified;
  KV_ASSIGN(ServerChannel channel, ServerChannel::Open(at.host, at.port, tls, end_ns));
  KV_TRY(channel.Send(request));
  std::string text;
  while (text.size() < kMaxAnswerBytes) {
    const Result<std::string_view> more = channel.Receive();
    if (!more && text.find("\r\n\r\n") == text.npos) return tl::unexpected(more.error());
    if (!more || more->empty()) break;
    text += *more;
  }
  if (text.empty()) return Fail(Code::kUnavailable, "it closed the connection");
  return text;
}

}  // namespace

Flag UrlFlag() {
  return {"url", "URL",
          "address of the server (default http://127.0.0.1:8080); for https SSL_CERT_FILE may name "
          "certificates to trust"};
}

Result<ServerAddress> ReadUrlFlag(const Args& args) {
  const std::string url = args.Text("url").value_or("http://127.0.0.1:8080");
  if (std::optional<ServerAddress> at = ParseAddress(url)) return *std::move(at);
  return Fail(Code::kInvalidArgument,
              "--url: '{}' is not the address of a server; give http://HOST:PORT or "
              "https://HOST:PORT",
              url);
}

Result<ServerAnswer> AskServer(const ServerAddress& at, const std::string& path,
                               const std::optional<std::string>& key) {
  const Result<std::string> text =
      AnswerTo(at,
               fmt::format("GET {} HTTP/1.0\r\nHost: {}\r\n{}\r\n", path, at.authority,
                           key ? "Authorization: Bearer " + *key + "\r\n" : std::string()),
               key.has_value());
  if (!text && text.error().code == Code::kPermissionDenied) {
    return Fail(Code::kUnavailable,
                "the certificate of the server at {} is not trusted: {}; SSL_CERT_FILE=FILE, an "
                "environment variable, names the certificate of the authority to trust",
                at.url, text.error().message);
  }
  const size_t head = text ? text->find("\r\n\r\n") : text->npos;
  if (!text || !text->starts_with("HTTP/1.") || head == text->npos) {
    return Fail(Code::kUnavailable,
                "no Kvasir server answers at {} ({}); 'kvasir serve' starts one, --url names "
                "another",
                at.url, text ? "it speaks no HTTP" : text.error().message);
  }
  if (!at.has_tls && text->find("this port speaks https") != text->npos) {
    return Fail(Code::kInvalidArgument, "--url: the server at {} speaks https: give https://{}",
                at.url, at.authority);
  }
  // "HTTP/1.1 200 OK"
  return ServerAnswer{text->substr(std::min<size_t>(text->find(' ') + 1, head), 3),
                      text->substr(head + 4)};
}

}  // namespace kvasir::cli
