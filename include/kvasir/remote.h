// Remote: options and state of the remote tier: a store that the machines of a fleet share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "kvasir/status.h"

namespace kvasir {

// kRead: nothing is written, refreshed or erased there.
enum class RemoteMode : uint8_t { kReadWrite, kRead };

// Which KV of 16 bits is compressed before it is written: kAuto bf16, and f16 where the store is
// slow. Other formats never are: they would gain 5%. All members of a fleet read both.
enum class RemoteCompression : uint8_t { kAuto, kNone, kZstd };

// What a request does with it.
enum class RemoteUse : uint8_t { kNone, kRead, kReadWrite };

struct RemoteOptions {
  // "redis://HOST:PORT", or "rediss://" with TLS: one server or a cluster; the password is in the
  // variable REDISCLI_AUTH. "s3://BUCKET/PREFIX?region=R&endpoint=URL": credentials are in
  // AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN.
  std::string url;
  std::optional<std::string> ca_file;  // PEM, of a store with TLS; absent: what the system trusts
  std::string fleet_secret;            // a file of 32 bytes, which all machines of the fleet have
  RemoteMode mode = RemoteMode::kReadWrite;
  uint64_t memory_bytes = uint64_t{64} << 20;  // of buffers
  uint64_t ttl_hours = 24;  // since a record was written or read; a bucket has rules instead
  std::optional<uint64_t> daily_bytes;  // written in a day (UTC); absent: no limit
  RemoteCompression compression = RemoteCompression::kAuto;
  // How long an operation may take beyond four times the usual before it is a stall: three in a
  // minute, and the store is left alone for a while.
  uint64_t stall_ms = 20;
};

// Counters and state of the remote tier; a snapshot. Bytes are those of whole values, as stored.
struct RemoteStats {
  enum class State : uint8_t { kConnecting, kOn, kOff };
  State state = State::kConnecting;
  std::string reason;  // why it is off
  std::string kind;    // "redis", "s3"
  std::string host;
  double rtt_ms = 0;            // of a lookup's round; 0: not known yet
  double load_bytes_per_s = 0;  // of KV that comes; 0: not known yet
  uint64_t read_bytes = 0, written_bytes = 0;
  uint64_t read_blocks = 0, written_blocks = 0, pending_blocks = 0, erased_blocks = 0;
  uint64_t lookups = 0;
  uint64_t dropped_buffer = 0, dropped_failed = 0, dropped_budget = 0;  // blocks
  uint64_t written_today_bytes = 0;     // by this machine, since the day began (UTC)
  std::optional<uint64_t> daily_bytes;  // RemoteOptions::daily_bytes
  uint64_t fault_io = 0, fault_stalled = 0, fault_damaged = 0, fault_missing = 0;
};
const char* ToString(RemoteStats::State state);  // "connecting", "on", "off"

// Removes from the store all that it has of an owner (GenerateRequest::cache_owner, else its
// tenant), also the object that an erase leaves; waits a minute at most. REQUIRES: no engine that
// used the owner is left. kInvalidArgument: as for EngineOptions::remote; kIoError, kUnavailable,
// kPermissionDenied, kCancelled: of the store.
Status RemoveFromRemote(const RemoteOptions& options, std::string_view owner);

// What an erase did in the store.
struct RemoteErased {
  uint64_t epoch = 0;  // of the owner, from now on
  uint64_t records = 0;
  bool complete = true;  // false: records are still being removed; none of them can be unsealed
};

}  // namespace kvasir
