// RemoteAddress: where a fleet's store is, as `--remote` says it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "kvasir/status.h"

namespace kvasir {

// A part of a bucket of an S3 store.
struct S3Bucket {
  std::string name;
  std::string prefix;  // of all names; "", or with a slash at its end
  std::string region;
  bool is_in_host = false;  // the host's name begins with the bucket's
};

// redis://[USER@]HOST[:PORT][/DATABASE], or rediss:// with TLS;
// s3://BUCKET[/PREFIX][?region=R][&endpoint=http[s]://HOST[:PORT]].
struct RemoteAddress {
  std::string host;
  uint16_t port = 6379;
  std::string user;       // "": the store's default one
  uint32_t database = 0;  // of SELECT
  bool has_tls = false;
  std::optional<S3Bucket> s3 = {};  // absent: it is a Redis

  // Returns "HOST:PORT", and "/BUCKET/PREFIX" after it, as logs and statistics show it.
  std::string text() const;
};

// kInvalidArgument (field `remote`): another scheme, a password (it would show in lists of
// processes), no host, a port or database that is not a number; no bucket, or an endpoint that is
// not a host's address.
Result<RemoteAddress> ParseRemoteAddress(const std::string& url);

// Reads what follows "s3://".
Result<RemoteAddress> ParseS3Address(std::string_view rest);
// Reads HOST[:PORT], and takes the brackets from an IPv6 address. False: it has no host, or the
// port is not one.
bool ReadHostAndPort(std::string_view text, RemoteAddress* address);

}  // namespace kvasir
