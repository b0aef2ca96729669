// Remote: options and state of the remote tier: a store that the machines of a fleet share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace kvasir {

// kRead: nothing is written, refreshed or erased there.
enum class RemoteMode : uint8_t { kReadWrite, kRead };

// What a request does with it.
enum class RemoteUse : uint8_t { kNone, kRead, kReadWrite };

struct RemoteOptions {
  // "redis://HOST:PORT", or "rediss://" with TLS; the password is in the variable REDISCLI_AUTH.
  std::string url;
  std::optional<std::string> ca_file;  // PEM, of rediss://; absent: what the system trusts
  std::string fleet_secret;            // a file of 32 bytes, which all machines of the fleet have
  RemoteMode mode = RemoteMode::kReadWrite;
  uint64_t memory_bytes = uint64_t{64} << 20;  // of buffers
  uint64_t ttl_hours = 24;                     // since a record was written or read
  std::optional<uint64_t> daily_bytes;         // written in a day (UTC); absent: no limit
};

// Counters and state of the remote tier; a snapshot. Bytes are those of whole values.
struct RemoteStats {
  enum class State : uint8_t { kConnecting, kOn, kOff };
  State state = State::kConnecting;
  std::string reason;  // why it is off
  std::string kind;    // "redis"
  std::string host;
  double rtt_ms = 0;            // of a lookup's round; 0: not known yet
  double load_bytes_per_s = 0;  // of reading and opening; 0: not known yet
  uint64_t read_bytes = 0, written_bytes = 0;
  uint64_t read_blocks = 0, written_blocks = 0, pending_blocks = 0, erased_blocks = 0;
  uint64_t lookups = 0;
  uint64_t dropped_buffer = 0, dropped_failed = 0, dropped_budget = 0;  // blocks
  uint64_t written_today_bytes = 0;     // since the day began (UTC), or the process
  std::optional<uint64_t> daily_bytes;  // RemoteOptions::daily_bytes
  uint64_t fault_io = 0, fault_stalled = 0, fault_damaged = 0, fault_missing = 0;
};
const char* ToString(RemoteStats::State state);  // "connecting", "on", "off"

// What an erase did in the store.
struct RemoteErased {
  uint64_t epoch = 0;  // of the owner, from now on
  uint64_t records = 0;
  bool complete = true;  // false: records are still being removed; none of them can be opened
};

}  // namespace kvasir
