// Namespaces and accounts of KvCache: opened by owner, recycled, forgotten, erased.
#include "base/fault.h"
#include "cache/cursor_store.h"
#include "cache/kv_cache.h"
#include "cache/tier_probe.h"

namespace kvasir {

std::optional<NamespaceId> KvCache::FindNamespace(std::string_view owner, const Identity& identity,
                                                  std::optional<std::string_view> salt) const {
  return namespaces_.Find(Namespaces::Named(owner, identity, salt));
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
  Namespace wanted = Namespaces::Named(owner, identity, salt);
  wanted.account = accounts_.Open(wanted.owner);
  wanted.stores = tier_ != nullptr && tier_->OpenOwner(wanted.owner);
  if (const auto ns = namespaces_.Reopen(wanted)) return *ns;
  const auto place = namespaces_.PlaceFor(wanted);
  if (!place) return kSharesNothing;
  const bool shared = FaultActive(Fault::kForeignNamespace);
  const BlockKey key =
      RootKeyOf(options_.secret, shared ? std::string_view() : owner, wanted.salt, wanted.identity);
  if (!place->old) return namespaces_.Put(*place, wanted, index_->AddRoot(key));
  Forget(*place->old);
  const NodeId root = Of(*place->old).root;
  index_->RenewRoot(root, key);
  return namespaces_.Put(*place, wanted, root);
}

AccountId KvCache::MakeAccount(std::string_view owner) {
  const AccountId account = OpenAccount(owner);
  if (account != kNobody) return account;
  std::optional<AccountId> fewest;
  for (size_t i = 1; i < accounts_.size(); ++i) {
    const KvAccounts::Account& other = accounts_.of(AccountId(i));
    if (other.used() > 0 || other.quota != KvQuota{}) continue;
    if (!fewest || other.idle < accounts_.of(*fewest).idle) fewest = AccountId(i);
  }
  if (!fewest) return kNobody;
  while (accounts_.of(*fewest).idle > 0 && residency_.EvictOne(*fewest, Residency::Victims::kOwn)) {
  }
  return OpenAccount(owner);
}

void KvCache::SetQuota(AccountId account, const KvQuota& quota) {
  accounts_.SetQuota(account, quota);
  while (accounts_.of(account).held() > quota.max &&
         residency_.EvictOne(account, Residency::Victims::kOwn)) {
  }
}

uint64_t KvCache::Forget(NamespaceId ns) {
  Namespace& space = Of(ns);
  ++space.epoch;
  cursors_->Drop(space.root);
  index_->Clear(space.root, [this](NodeId node) {
    cursors_->Drop(node);
    for (const KvKind& kind : layout().kinds()) {
      if (!index_->block(node, kind.first_group)) continue;
      residency_.Detach(node, kind, PrefixIndex::RemoveKind::kForgotten);
    }
  });
  return owners_.Forget(ns);
}

uint64_t KvCache::Forget(std::string_view owner) {
  const Digest digest = Sha256Of(owner);
  for (size_t i = 1; i < namespaces_.size(); ++i) {
    if (Of(NamespaceId(i)).owner == digest) Forget(NamespaceId(i));
  }
  return owners_.point();  // also of those that were recycled
}

void KvCache::Erase(NamespaceId ns) {
  Forget(ns);
  ZeroForgotten(plan_.pool_bytes);
}

}  // namespace kvasir
