// Namespaces: which namespaces a cache has, and whose they are.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/digest.h"
#include "block/ids.h"
#include "cache/identity.h"
#include "cache/kv_accounts.h"
#include "index/prefix_index.h"

namespace kvasir {

// The namespace of owners for which the cache has no room: it shares and keeps nothing.
inline constexpr NamespaceId kSharesNothing{0};

struct Namespace {
  Digest owner;  // of its name, so that all names take the same memory
  AccountId account = kNobody;
  std::optional<Digest> salt = {};
  Identity identity;
  Identity plain{};  // the identity of the same without adapters: differs from `identity` with them
  NodeId root{};
  uint32_t epoch = 0;    // times erased
  uint32_t users = 0;    // holds of matches and sequences, those from before an erasure too
  uint64_t entered = 0;  // when last, by the clock of Namespaces
  bool stores = false;   // the tier has a key for its owner

  bool HasOwnerOf(const Namespace& other) const {
    return owner == other.owner && salt == other.salt;
  }
  bool is_adapted() const { return identity != plain; }
};

// How many namespaces there are.
struct NamespaceLimits {
  uint32_t all;
  uint32_t of_owner = UINT32_MAX;  // without a salt: Identities under which an owner has KV
};

// A table of a fixed size. It says which entry a new namespace takes; the caller empties that one
// and gives it its root. Allocates only in its constructor. One thread at a time.
class Namespaces {
 public:
  static constexpr uint32_t kMaxSalts = 8;  // of an owner and Identity

  // `root`: of kSharesNothing. `index` and `accounts` must outlive this.
  Namespaces(const NamespaceLimits& limits, NodeId root, const PrefixIndex& index,
             const KvAccounts& accounts);
  static uint64_t BytesFor(uint32_t num_namespaces) {
    return (uint64_t{num_namespaces} + 1) * sizeof(Namespace);
  }
  uint64_t allocated_bytes() const { return entries_.capacity() * sizeof(Namespace); }

  // Returns what a namespace of this name is found by.
  static Namespace Named(std::string_view owner, const Identity& identity,
                         std::optional<std::string_view> salt);
  std::optional<NamespaceId> Find(const Namespace& named) const;
  // Returns the namespace of this name, whose account and key are now those of `wanted`.
  std::optional<NamespaceId> Reenter(const Namespace& wanted);
  // Where a new namespace may stand. To be called after Reenter, once.
  struct Place {
    std::optional<NamespaceId> old;  // the one that must be emptied; absent: there is a free entry
  };
  std::optional<Place> PlaceFor(const Namespace& wanted) const;
  // REQUIRES: `place` is of PlaceFor, and its old namespace is empty.
  NamespaceId Put(const Place& place, Namespace wanted, NodeId root);

  Namespace& Of(NamespaceId ns) { return entries_[static_cast<size_t>(ns)]; }
  const Namespace& Of(NamespaceId ns) const { return entries_[static_cast<size_t>(ns)]; }
  size_t size() const { return entries_.size(); }  // with kSharesNothing, the first one

 private:
  std::optional<NamespaceId> Recyclable(const Namespace* like) const;
  std::optional<NamespaceId> OldestSalted() const;
  std::optional<NamespaceId> OldestOf(const Digest& owner, bool salted) const;

  const uint32_t max_of_owner_;
  const PrefixIndex& index_;
  const KvAccounts& accounts_;
  std::vector<Namespace> entries_;  // reserved at construction
  uint64_t clock_ = 0;              // calls of Reenter
};

}  // namespace kvasir
