// KV events: options and counters of the messages that tell routers which blocks the pool holds.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace kvasir {

// How an event is written in MessagePack: a map, or an array as vLLM's older releases.
enum class KvEventsFormat : uint8_t { kMap, kArray };

struct KvEventsOptions {
  std::string address;                        // "tcp://127.0.0.1:5557": where events are published
  std::optional<std::string> replay_address;  // where lost batches are asked for; absent: nowhere
  std::string topic;                          // the first frame of each message
  KvEventsFormat format = KvEventsFormat::kMap;
  // The owner whose blocks are published: GenerateRequest::cache_owner, else its tenant.
  std::string owner = "default";
  // The tenant whose cache that is. Where Engine::SetTenants gives it another one, the blocks of
  // that one are published; while it does not name the tenant, nothing is. Absent: `owner` stays.
  std::optional<std::string> tenant = {};
};

// A snapshot. Events: blocks that were stored or removed.
struct KvEventsStats {
  std::string address;                        // with the port that the system chose
  std::optional<std::string> replay_address;  // the same
  uint64_t sent = 0;                          // events, in the batches that told of them first
  uint64_t snapshot = 0;  // blocks, in batches that repeat all that the pool holds
  uint64_t replayed = 0;  // events, in batches that a client asked for again
  uint64_t lost = 0;      // events that found the queue full; a snapshot follows
};

}  // namespace kvasir
