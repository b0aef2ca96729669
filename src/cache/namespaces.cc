#include "cache/namespaces.h"

#include "base/check.h"
#include "base/fault.h"

namespace kvasir {

Namespaces::Namespaces(const NamespaceLimits& limits, NodeId root, const PrefixIndex& index,
                       const KvAccounts& accounts)
    : max_of_owner_(limits.of_owner), index_(index), accounts_(accounts) {
  entries_.reserve(size_t{limits.all} + 1);
  entries_.push_back({.owner = {}, .identity = {}, .root = root});
}

Namespace Namespaces::Named(std::string_view owner, const Identity& identity,
                            std::optional<std::string_view> salt) {
  static constexpr Identity kNoIdentity{};
  const bool shared = FaultActive(Fault::kForeignNamespace);
  Namespace named{.owner = Sha256Of(shared ? std::string_view() : owner),
                  .identity = shared ? kNoIdentity : identity};
  named.plain = named.identity;
  if (salt && !shared) named.salt = Sha256Of(*salt);
  return named;
}

std::optional<NamespaceId> Namespaces::Find(const Namespace& named) const {
  for (size_t i = 1; i < entries_.size(); ++i) {
    if (entries_[i].identity == named.identity && entries_[i].HasOwnerOf(named)) {
      return NamespaceId(i);
    }
  }
  return std::nullopt;
}

std::optional<NamespaceId> Namespaces::Reenter(const Namespace& wanted) {
  ++clock_;
  const auto ns = Find(wanted);
  if (!ns) return std::nullopt;
  Namespace& space = Of(*ns);
  space.entered = clock_;
  space.account = wanted.account;
  space.stores = wanted.stores;
  return ns;
}

std::optional<Namespaces::Place> Namespaces::PlaceFor(const Namespace& wanted) const {
  uint32_t num_salted = 0, num_plain = 0, num_adapted = 0;
  for (const Namespace& space : entries_) {
    num_plain += space.owner == wanted.owner && !space.salt;
    const bool is_like = space.owner == wanted.owner && space.identity == wanted.identity;
    num_salted += is_like && space.salt.has_value();
    num_adapted += space.owner == wanted.owner && space.salt && space.is_adapted();
  }
  // Salts times scales of adapters: as many as salts without.
  if (wanted.salt && wanted.is_adapted() && num_adapted >= kMaxSalts) {
    const auto own = OldestOf(wanted.owner, true);
    return own ? std::optional(Place{own}) : std::nullopt;
  }
  if (!wanted.salt && num_plain >= max_of_owner_) {
    const auto own = OldestOf(wanted.owner, false);
    return own ? std::optional(Place{own}) : std::nullopt;
  }
  const bool too_many = wanted.salt.has_value() && num_salted >= kMaxSalts;
  if (entries_.size() < entries_.capacity() && !too_many) return Place{};
  auto old = Recyclable(too_many ? &wanted : nullptr);
  if (!old && !wanted.salt) old = OldestSalted();
  if (!old) return std::nullopt;
  return Place{old};
}

NamespaceId Namespaces::Put(const Place& place, Namespace wanted, NodeId root) {
  wanted.root = root;
  wanted.entered = clock_;
  if (!place.old) {
    KV_CHECK(entries_.size() < entries_.capacity());
    entries_.push_back(wanted);
    return NamespaceId(entries_.size() - 1);
  }
  wanted.epoch = Of(*place.old).epoch;
  Of(*place.old) = wanted;
  return *place.old;
}

// Returns the namespace without blocks and users that was entered longest ago. Not the one that was
// entered last, whose id the caller is about to use. `like`: only salted ones of its owner and
// identity.
std::optional<NamespaceId> Namespaces::Recyclable(const Namespace* like) const {
  std::optional<NamespaceId> best;
  for (size_t i = 1; i < entries_.size(); ++i) {
    const Namespace& space = entries_[i];
    if (like && (!space.salt || space.owner != like->owner || space.identity != like->identity)) {
      continue;
    }
    const bool is_new = space.entered + 1 == clock_;
    if (is_new || space.users > 0 || index_.has_children(space.root)) continue;
    if (!best || space.entered < Of(*best).entered) best = NamespaceId(i);
  }
  return best;
}

// Returns the salted namespace without users that was entered longest ago, with or without blocks:
// one owner's salts must leave namespaces for others. Not one of an owner with a guarantee.
std::optional<NamespaceId> Namespaces::OldestSalted() const {
  std::optional<NamespaceId> best;
  for (size_t i = 1; i < entries_.size(); ++i) {
    const Namespace& space = entries_[i];
    if (!space.salt || space.users > 0 || space.entered + 1 == clock_) continue;
    if (accounts_.of(space.account).quota.guaranteed > 0) continue;
    if (!best || space.entered < Of(*best).entered) best = NamespaceId(i);
  }
  return best;
}

// Returns the owner's namespace without users that was entered longest ago, with or without blocks,
// of those without a salt, or of those with salt and adapters: clients choose scales of adapters
// freely, and each scale has a separate Identity.
std::optional<NamespaceId> Namespaces::OldestOf(const Digest& owner, bool salted) const {
  std::optional<NamespaceId> best;
  for (size_t i = 1; i < entries_.size(); ++i) {
    const Namespace& space = entries_[i];
    if (space.owner != owner || space.salt.has_value() != salted) continue;
    if (salted && !space.is_adapted()) continue;
    if (space.users > 0 || space.entered + 1 == clock_) continue;
    if (!best || space.entered < Of(*best).entered) best = NamespaceId(i);
  }
  return best;
}

}  // namespace kvasir
