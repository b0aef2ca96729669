// Reads and writes owners' objects in a fleet's store.
#pragma once

#include <functional>
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

// Writes an object where the store has nothing; false: it has something. Errors are those of
// ReadOwnerReply, and kExhausted.
Result<bool> MakeOwner(RedisConnection& connection, const FleetKeys& keys, std::string_view name,
                       const OwnerEpoch& epoch, const RedisConnection::Waits& waits);
// Returns what is to be written in the place of what the store has; absent: that stays.
using NextOwner = std::function<Result<std::optional<OwnerEpoch>>(const StoredOwner& stored)>;
// Writes what `next` returns, if what it was shown is still there; else asks it again. Returns what
// the store has then. Errors are those of MakeOwner and `next`; kUnavailable: it changes each time.
Result<StoredOwner> ChangeOwner(RedisConnection& connection, const FleetKeys& keys,
                                std::string_view name, const NextOwner& next,
                                const RedisConnection::Waits& waits);

}  // namespace kvasir
