// Slots of a Redis cluster: which one a name has, and what nodes say of where it is.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/status.h"
#include "remote/redis_connection.h"

namespace kvasir {

inline constexpr uint32_t kRedisSlots = 16384;

// Returns the slot of a name: CRC16 (XMODEM) of it, or of what is in its first {}.
uint16_t SlotOf(std::string_view name);

struct RedisNode {
  std::string host;
  uint16_t port = 0;

  bool operator==(const RedisNode&) const = default;
};

// An error by which a node sends a command to another one: for good (MOVED), or, while a slot is on
// its way, this one time (ASK).
struct RedisRedirect {
  bool is_ask = false;
  uint16_t slot = 0;
  RedisNode to;  // without a host: that of the node which says so
};
// Absent: the error is another one.
std::optional<RedisRedirect> ParseRedirect(std::string_view error);

// Which node has which slot.
struct RedisSlots {
  static constexpr size_t kMostNodes = 32;

  // Returns the node's number, added if it is new. Absent: there are kMostNodes already.
  std::optional<uint8_t> NumberOf(const RedisNode& node);

  std::array<uint8_t, kRedisSlots> node_of{};  // numbers
  std::vector<RedisNode> nodes;                // masters
};

// Asks a node for all slots (CLUSTER SLOTS). kUnavailable: it refuses, with its words, or there are
// too many nodes. kCorruption: the reply is not one to this command. `here`: the node that is
// asked.
Result<RedisSlots> ReadSlots(RedisConnection& connection, const RedisNode& here,
                             const RedisConnection::Waits& waits);

}  // namespace kvasir
