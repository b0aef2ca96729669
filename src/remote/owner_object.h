// Reads and writes owners' objects in a fleet's store.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "remote/fleet_keys.h"
#include "remote/redis_connection.h"

namespace kvasir {

// What the store has under the name of an owner.
struct StoredOwner {
  bool is_there = false;            // an object, or something else
  std::optional<OwnerEpoch> epoch;  // absent: it is missing, or not an object of this owner
};

// Appends the command whose reply ReadOwnerReply reads.
void AppendReadOwner(std::string& text, std::string_view name);
// Reads the reply. What is longer than an object, or not a value, is there and has no epoch.
// kUnavailable: the store refuses, with its words.
Result<StoredOwner> ReadOwnerReply(RedisConnection& connection, const FleetKeys& keys,
                                   std::string_view name, const RedisConnection::Waits& waits);
Result<StoredOwner> ReadOwner(RedisConnection& connection, const FleetKeys& keys,
                              std::string_view name, const RedisConnection::Waits& waits);

enum class IfThere { kReplace, kKeep };
// Writes an object; false: kKeep, and there is one. Errors are those of ReadOwnerReply, and
// kExhausted.
Result<bool> WriteOwner(RedisConnection& connection, const FleetKeys& keys, std::string_view name,
                        const OwnerEpoch& epoch, IfThere if_there,
                        const RedisConnection::Waits& waits);

}  // namespace kvasir
