// RemoteAddress: where a fleet's store is, as `--remote` says it.
#pragma once

#include <cstdint>
#include <string>

#include "kvasir/status.h"

namespace kvasir {

// redis://[USER@]HOST[:PORT][/DATABASE], or rediss:// with TLS.
struct RemoteAddress {
  std::string host;
  uint16_t port = 6379;
  std::string user;       // "": the store's default one
  uint32_t database = 0;  // of SELECT
  bool has_tls = false;

  // Returns "HOST:PORT", as logs and statistics show it.
  std::string text() const;
};

// kInvalidArgument (field `remote`): another scheme, a password (it would show in lists of
// processes), no host, a port or database that is not a number.
Result<RemoteAddress> ParseRemoteAddress(const std::string& url);

}  // namespace kvasir
