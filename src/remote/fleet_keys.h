// FleetKeys: what a fleet's secret says: names in a store that machines share, and keys of values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/digest.h"
#include "base/secret.h"
#include "tier/segment.h"

namespace kvasir {

// Returns the secret of the cache's BlockKeys: the same on all machines of a fleet.
Secret FleetCacheSecret(const Secret& fleet);
// Returns the Identity under which a machine of a fleet keeps its disk: a store of a machine alone
// and one of a fleet never mix.
Digest FleetIdentity(const Secret& fleet, const Digest& identity);

// What an owner object holds, sealed: a tenant's or share group's part of the store since it was
// erased last.
struct OwnerEpoch {
  uint64_t epoch = 0;  // from 1; 0: not known
  WipedKey random;     // the root of its names and keys
};

inline constexpr uint64_t kOwnerObjectBytes = 96;
using OwnerObject = std::array<std::byte, kOwnerObjectBytes>;

// Thread-safe.
class FleetKeys {
 public:
  explicit FleetKeys(const Secret& fleet);

  // Returns "kvasir/1/<fleet>", without a slash at its end.
  const std::string& prefix() const { return prefix_; }
  // Returns the name of an owner's object; records are below it. It does not tell others who the
  // owner is.
  std::string OwnerName(const Digest& owner) const;
  // Seals and unseals an owner object. Absent: no memory; damaged, or of another fleet or owner.
  std::optional<OwnerObject> SealOwner(std::string_view name, const OwnerEpoch& epoch,
                                       const RecordSalt& salt) const;
  std::optional<OwnerEpoch> UnsealOwner(std::string_view name,
                                        std::span<const std::byte> bytes) const;

 private:
  const HmacKey key_;
  std::string prefix_;
};

// Returns the name of a record: below its owner's name, 64 hex digits.
std::string RemoteName(std::string_view owner_name, const AesKey& random, const RecordName& name);

}  // namespace kvasir
