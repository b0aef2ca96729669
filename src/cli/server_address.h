// ServerAddress: where a running server listens, and what it answers to commands that ask it.
#pragma once

#include <optional>
#include <string>

#include "cli/args.h"
#include "kvasir/status.h"

namespace kvasir::cli {

struct ServerAddress {
  std::string url;         // as it was given
  std::string host, port;  // "::1", "8080"
  std::string authority;   // of the Host header: "[::1]:8080"
  bool has_tls = false;
};

// --url of commands that ask a server.
Flag UrlFlag();
// Reads --url: http://HOST:PORT, also without http:// or with /v1, or https://HOST:PORT.
// kInvalidArgument: another kind of address.
Result<ServerAddress> ReadUrlFlag(const Args& args);

struct ServerAnswer {
  std::string status;  // "200"
  std::string body;
};
// Sends a GET, with `key` where there is one, and waits 5 s for the answer. The certificate of
// https is verified, except on this machine without a key. kUnavailable: what answers there is no
// server of HTTP, or nothing does, or its certificate is not trusted; kInvalidArgument: it speaks
// https, and the address does not.
Result<ServerAnswer> AskServer(const ServerAddress& at, const std::string& path,
                               const std::optional<std::string>& key);

}  // namespace kvasir::cli
