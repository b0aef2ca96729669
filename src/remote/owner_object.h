// Reads and writes owners' objects in a fleet's store.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "remote/fleet_keys.h"
#include "remote/store_client.h"

namespace kvasir {

// What the store has under the name of an owner.
struct StoredOwner {
  bool is_there = false;            // an object, or something else
  std::optional<OwnerEpoch> epoch;  // absent: it is missing, or not an object of this owner
};

// Has one more byte than an object: what is longer is seen.
using OwnerBytes = std::array<std::byte, kOwnerObjectBytes + 1>;

// Returns the request for an owner's object, which comes into `bytes`.
StoreRequest PeekOwner(const std::string& name, OwnerBytes& bytes);
// Returns what its reply says. What is longer than an object, or not a value, is there and has no
// epoch. kUnavailable: the store refuses, with its words.
Result<StoredOwner> OwnerOfReply(const StoreReply& reply, const FleetKeys& keys,
                                 std::string_view name, const OwnerBytes& bytes);
Result<StoredOwner> ReadOwner(StoreClient& client, const FleetKeys& keys, const std::string& name,
                              const StoreClient::Waits& waits);

// Writes an object where the store has nothing; false: it has something. Errors are those of
// OwnerOfReply, and kExhausted.
Result<bool> MakeOwner(StoreClient& client, const FleetKeys& keys, const std::string& name,
                       const OwnerEpoch& epoch, const StoreClient::Waits& waits);
// Removes an owner's object and all below it. REQUIRES: no machine has anything of the owner any
// more, for one that has would make the object anew. Errors are those of OwnerOfReply.
Status RemoveOwner(StoreClient& client, const FleetKeys& keys, const Digest& owner,
                   const StoreClient::Waits& waits);

// Returns what is to be written in the place of what the store has; absent: that stays.
using NextOwner = std::function<Result<std::optional<OwnerEpoch>>(const StoredOwner& stored)>;
// Writes what `next` returns, if what it was shown is still there; else asks it again. Returns what
// the store has then. Errors are those of MakeOwner and `next`; kUnavailable: it changes each time.
Result<StoredOwner> ChangeOwner(StoreClient& client, const FleetKeys& keys, const std::string& name,
                                const NextOwner& next, const StoreClient::Waits& waits);

}  // namespace kvasir
