// Namespaces of KvCache: opened by owner, recycled, forgotten, erased.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/fault.h"
#include "cache/cursor_store.h"
#include "cache/kv_cache.h"
#include "cache/tier_probe.h"

namespace kvasir {

// What a namespace of this name is compared by.
KvCache::Namespace KvCache::Named(std::string_view owner, const Identity& identity,
                                  std::optional<std::string_view> salt) const {
  static constexpr Identity kNoIdentity{};
  const bool shared = FaultActive(Fault::kForeignNamespace);
  Namespace named{.owner = Sha256Of(shared ? std::string_view() : owner),
                  .identity = shared ? kNoIdentity : identity};
  if (salt && !shared) named.salt = Sha256Of(*salt);
  return named;
}

std::optional<NamespaceId> KvCache::FindNamespace(std::string_view owner, const Identity& identity,
                                                  std::optional<std::string_view> salt) const {
  const Namespace named = Named(owner, identity, salt);
  for (size_t i = 1; i < namespaces_.size(); ++i) {
    const bool is_it =
        namespaces_[i].identity == named.identity && SameOwner(namespaces_[i], named);
    if (is_it) return NamespaceId(i);
  }
  return std::nullopt;
}

uint32_t KvCache::Probe(std::string_view owner, const Identity& identity,
                        std::optional<std::string_view> salt,
                        std::span<const TokenId> prompt) const {
  const std::optional<NamespaceId> ns = FindNamespace(owner, identity, salt);
  if (!ns) return 0;
  const size_t block_tokens = layout().block_tokens();
  uint32_t tokens = 0;
  NodeId node = Of(*ns).root;
  while (tokens + block_tokens <= prompt.size()) {
    const auto child = index_->FindChild(node, prompt.subspan(tokens, block_tokens));
    if (!child) break;
    node = *child;
    tokens += static_cast<uint32_t>(block_tokens);
  }
  return tokens;
}

NamespaceId KvCache::OpenNamespace(std::string_view owner, const Identity& identity,
                                   std::optional<std::string_view> salt) {
  const bool shared = FaultActive(Fault::kForeignNamespace);
  Namespace wanted = Named(owner, identity, salt);
  wanted.account = accounts_.Open(wanted.owner);
  wanted.opened = ++namespace_clock_;
  wanted.stores = tier_ != nullptr && tier_->OpenOwner(wanted.owner);
  uint32_t num_salted = 0;
  for (size_t i = 1; i < namespaces_.size(); ++i) {
    Namespace& space = namespaces_[i];
    if (space.owner != wanted.owner || space.identity != wanted.identity) continue;
    if (SameOwner(space, wanted)) {
      space.opened = wanted.opened;
      space.account = wanted.account;
      space.stores = wanted.stores;
      return NamespaceId(i);
    }
    num_salted += space.salt.has_value();
  }
  const bool full = namespaces_.size() > options_.num_namespaces;
  const bool too_many = wanted.salt.has_value() && num_salted >= kMaxSalts;
  std::optional<size_t> place;
  if (full || too_many) {
    place = Recyclable(too_many ? &wanted : nullptr);
    if (!place && !wanted.salt) place = OldestSalted();
    if (!place) return kSharesNothing;
  }
  const BlockKey key =
      RootKeyOf(options_.secret, shared ? std::string_view() : owner, wanted.salt, wanted.identity);
  if (place) {
    Forget(NamespaceId(*place));
    Namespace& space = namespaces_[*place];
    index_->RenewRoot(space.root, key);
    wanted.root = space.root;
    wanted.epoch = space.epoch;
    space = wanted;
    return NamespaceId(*place);
  }
  wanted.root = index_->AddRoot(key);
  namespaces_.push_back(wanted);
  return NamespaceId(namespaces_.size() - 1);
}

// The namespace without blocks and users that was opened longest ago. Not the one that was opened
// last, whose id the caller is about to use. `like`: only salted ones of its owner and identity.
std::optional<size_t> KvCache::Recyclable(const Namespace* like) const {
  std::optional<size_t> best;
  for (size_t i = 1; i < namespaces_.size(); ++i) {
    const Namespace& space = namespaces_[i];
    if (like && (!space.salt || space.owner != like->owner || space.identity != like->identity)) {
      continue;
    }
    const bool is_new = space.opened + 1 == namespace_clock_;
    if (is_new || space.users > 0 || index_->has_children(space.root)) continue;
    if (!best || space.opened < namespaces_[*best].opened) best = i;
  }
  return best;
}

// The salted namespace without users that was opened longest ago, blocks or not: one owner's salts
// must leave namespaces for others. Not of an owner with a guarantee.
std::optional<size_t> KvCache::OldestSalted() const {
  std::optional<size_t> best;
  for (size_t i = 1; i < namespaces_.size(); ++i) {
    const Namespace& space = namespaces_[i];
    if (!space.salt || space.users > 0 || space.opened + 1 == namespace_clock_) continue;
    if (accounts_.of(space.account).quota.guaranteed > 0) continue;
    if (!best || space.opened < namespaces_[*best].opened) best = i;
  }
  return best;
}

uint64_t KvCache::Forget(NamespaceId ns) {
  Namespace& space = Of(ns);
  ++space.epoch;
  cursors_->Drop(space.root);
  index_->Clear(space.root, [this](NodeId node) {
    cursors_->Drop(node);
    for (const KvKind& kind : layout().kinds()) {
      if (!index_->block(node, kind.first_group)) continue;
      Detach(node, kind, PrefixIndex::RemoveKind::kForgotten);
    }
  });
  return ForgetUnlinked(ns);
}

// Has all blocks zeroed that sequences of the namespace wrote and no node holds: those that running
// sequences have not published yet, and free ones that earlier sequences wrote.
uint64_t KvCache::ForgetUnlinked(NamespaceId ns) {
  for (uint32_t b = 0; b < owner_.size(); ++b) {
    if (owner_[b] != static_cast<uint32_t>(ns) + 1) continue;
    if (pool_->is_free(BlockId{b})) {
      owner_[b] |= kForgotten;
      ++num_forgotten_;
    } else if (!pool_->retained(BlockId{b})) {
      pool_->Scrub(BlockId{b});
    }
  }
  return zeroing_at_ + plan_.num_blocks;
}

uint64_t KvCache::Forget(std::string_view owner) {
  const Digest digest = Sha256Of(owner);
  for (size_t i = 1; i < namespaces_.size(); ++i) {
    if (namespaces_[i].owner == digest) Forget(NamespaceId(i));
  }
  return zeroing_at_ + plan_.num_blocks;  // also of those that were recycled
}

void KvCache::ZeroForgotten(uint64_t bytes) {
  for (uint64_t zeroed = 0; num_forgotten_ > 0 && zeroed < bytes; ++zeroing_at_) {
    const auto b = static_cast<uint32_t>(zeroing_at_ % plan_.num_blocks);
    if ((owner_[b] & kForgotten) == 0) continue;
    pool_->Scrub(BlockId{b});
    owner_[b] = 0;
    --num_forgotten_;
    zeroed += layout().block_bytes();
  }
}

void KvCache::Erase(NamespaceId ns) {
  Forget(ns);
  ZeroForgotten(plan_.pool_bytes);
}

}  // namespace kvasir
