// OwnerKeys: the keys that seal records, one for each tenant or share group.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.h"
#include "base/secret.h"
#include "kvasir/status.h"
#include "tier/aes_gcm.h"
#include "tier/segment.h"

namespace kvasir {

// What a key file holds, sealed.
struct OwnerKey {
  Digest owner{};
  AesKey key{};
  OwnerTag namespace_id{};
};

inline constexpr uint64_t kKeyFileBytes = 136;
using KeyFileBytes = std::array<std::byte, kKeyFileBytes>;

// Returns the name of an owner's key file: HMAC-SHA-256(secret, "kvasir owner" || owner), in hex.
// It is the same in all stores of a secret, and does not tell others who the owner is.
std::string KeyFileName(const Secret& secret, const Digest& owner);
// Seals a key file. Absent: no memory.
std::optional<KeyFileBytes> SealKeyFile(const Secret& secret, const StoreId& store,
                                        const OwnerKey& key, const RecordSalt& salt);
// Unseals a key file. Absent: damaged, of another store, secret or name.
std::optional<OwnerKey> UnsealKeyFile(const Secret& secret, const StoreId& store,
                                      std::string_view name, std::span<const std::byte> bytes);

void WipeKeys(std::span<OwnerKey> keys);

// An owner's place in OwnerKeys.
enum class OwnerId : uint16_t {};

// The keys in memory: in one area that is not swapped and not dumped. An owner that was erased
// cannot be found any more, but keeps its place until Release. Thread-compatible.
class OwnerKeys {
 public:
  static uint64_t BytesFor(uint32_t max_owners);  // of the area
  static constexpr uint32_t kMaxOwners = 1024;

  // kExhausted when the system refuses the memory. Where it refuses to lock it, swap may see it.
  static Result<OwnerKeys> Create(uint32_t max_owners);
  OwnerKeys(OwnerKeys&& other) noexcept;
  OwnerKeys& operator=(OwnerKeys&&) = delete;
  ~OwnerKeys();

  std::optional<OwnerId> Find(const Digest& owner) const;
  std::optional<OwnerId> FindNamespace(const OwnerTag& id) const;
  // Adds a key, without a file yet. Absent: no place is left. REQUIRES: Find(key.owner) is absent.
  std::optional<OwnerId> Add(const OwnerKey& key);
  void SetKey(OwnerId id, const AesKey& key) { keys_[static_cast<size_t>(id)].key = key; }
  void Hide(OwnerId id);     // Find and FindNamespace do not give it any more
  void Release(OwnerId id);  // wipes its key; the place may be taken again
  void Clear();
  std::vector<Digest> Owners() const;  // that Find gives

  const Digest& owner_of(OwnerId id) const { return keys_[static_cast<size_t>(id)].owner; }
  // Returns a copy; the caller wipes it.
  OwnerKey KeyOf(OwnerId id) const;
  const AesKey& key_of(OwnerId id) const { return keys_[static_cast<size_t>(id)].key; }
  // Returns whether its file is known to be on the disk.
  bool has_file(OwnerId id) const { return at(id).has_file; }
  void set_has_file(OwnerId id) { at(id).has_file = true; }
  // Counts records and writes that need the key.
  void AddUse(OwnerId id) { ++at(id).uses; }
  void EndUse(OwnerId id) {
    if (--at(id).uses == 0 && at(id).leaves) Release(id);
  }
  // Releases, at once or when its last use ends.
  void ReleaseWhenUnused(OwnerId id) {
    at(id).leaves = true;
    if (at(id).uses == 0) Release(id);
  }
  uint32_t uses(OwnerId id) const { return at(id).uses; }
  // Returns an owner without uses, whose place another one may have.
  std::optional<OwnerId> Unused() const;

 private:
  struct Place {
    bool is_taken = false, is_hidden = false, leaves = false, has_file = false;
    uint32_t uses = 0;
  };
  OwnerKeys(uint32_t max_owners, OwnerKey* keys, uint64_t bytes);
  Place& at(OwnerId id) { return places_[static_cast<size_t>(id)]; }
  const Place& at(OwnerId id) const { return places_[static_cast<size_t>(id)]; }

  OwnerKey* keys_;
  uint64_t bytes_;
  std::vector<Place> places_;
};

}  // namespace kvasir
