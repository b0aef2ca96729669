// Namespaces and accounts of KvCache: entered by owner, recycled, forgotten, erased.
#include <utility>

#include "base/check.h"
#include "base/fault.h"
#include "cache/kv_cache.h"
#include "cache/record_names.h"
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
  return ns ? matcher_.WholeBlocksHeld(Of(*ns).root, prompt) : 0;
}

LookFor KvCache::LookForRest(std::string_view owner, const Identity& identity,
                             std::optional<std::string_view> salt, std::span<const TokenId> prompt,
                             uint32_t head, std::span<const std::vector<TokenId>> texts) const {
  const Namespace named = Namespaces::Named(owner, identity, salt);
  LookFor what{
      .owner = named.owner, .names = {}, .is_chain = !layout().has_windows() && texts.empty()};
  if (prompt.empty()) return what;
  KV_CHECK(texts.empty() || prompt.size() > head);
  const uint32_t block_tokens = layout().block_tokens(), head_blocks = head / block_tokens;
  const BlockKey root = RootKeyOf(options_.secret, owner, named.salt, named.identity);
  const HmacKey hmac(root);
  BlockKey head_key = root;
  const auto add = [&](std::span<const TokenId> text, uint32_t begin) {
    const auto first = Probe(owner, identity, salt, text) / block_tokens;
    const auto end = static_cast<uint32_t>((text.size() - 1) / block_tokens);
    BlockKey key = begin == 0 ? root : head_key;
    for (uint32_t block = begin; block < end; ++block) {
      key = ChildKey(hmac, key, text.subspan(size_t{block} * block_tokens, block_tokens));
      if (block + 1 == head_blocks) head_key = key;
      for (uint32_t group = 0; block >= first && group < layout().num_own_groups(); ++group) {
        what.names.push_back(RecordNameOf(layout(), key, group));
      }
    }
  };
  add(prompt, 0);
  for (const std::vector<TokenId>& text : texts) add(text, head_blocks);
  return what;
}

NamespaceId KvCache::EnterNamespace(std::string_view owner, const Identity& identity,
                                    std::optional<std::string_view> salt,
                                    const std::optional<Identity>& plain) {
  Namespace wanted = Namespaces::Named(owner, identity, salt);
  wanted.plain = plain.value_or(identity);
  wanted.account = accounts_.Enter(wanted.owner);
  wanted.stores = options_.tier != nullptr && options_.tier->ReadyOwner(wanted.owner);
  if (const auto ns = namespaces_.Reenter(wanted)) return *ns;
  const auto place = namespaces_.PlaceFor(wanted);
  if (!place) return kSharesNothing;
  const bool shared = FaultActive(Fault::kForeignNamespace);
  const BlockKey key =
      RootKeyOf(options_.secret, shared ? std::string_view() : owner, wanted.salt, wanted.identity);
  NodeId root;
  if (place->old) {
    Forget(*place->old);
    root = Of(*place->old).root;
    index_->RenewRoot(root, key);
  } else {
    root = index_->AddRoot(key);
  }
  if (options_.events != nullptr) options_.events->SetPublished(root, IsPublished(wanted));
  return namespaces_.Put(*place, wanted, root);
}

bool KvCache::IsPublished(const Namespace& space) const {
  return options_.events->owner() == space.owner && !space.salt && !space.is_adapted();
}

void KvCache::SetEventOwner(const std::optional<Digest>& owner) {
  KvEventLog& events = *options_.events;
  if (events.owner() == owner) return;
  events.SetOwner(owner, [&] {
    for (size_t i = 1; i < namespaces_.size(); ++i) {
      const Namespace& space = Of(NamespaceId(i));
      events.SetPublished(space.root, IsPublished(space));
    }
  });
}

AccountId KvCache::MakeAccount(std::string_view owner) {
  const AccountId account = EnterAccount(owner);
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
  return EnterAccount(owner);
}

void KvCache::SetQuota(AccountId account, const KvQuota& quota) {
  accounts_.SetQuota(account, quota);
  while (accounts_.of(account).held() > quota.max &&
         residency_.EvictOne(account, Residency::Victims::kOwn)) {
  }
}

uint64_t KvCache::Forget(const Digest& owner) {
  for (size_t i = 1; i < namespaces_.size(); ++i) {
    if (Of(NamespaceId(i)).owner == owner) Forget(NamespaceId(i));
  }
  return owners_.point();  // also of those that were recycled
}

void KvCache::Erase(NamespaceId ns) {
  Forget(ns);
  ZeroForgotten(plan_.pool_bytes);
}

ForgetFacts KvCache::FactsToForget(std::string_view owner, const Identity& identity,
                                   std::optional<std::string_view> salt,
                                   std::span<const TokenId> ids, uint32_t first, uint32_t last,
                                   std::shared_ptr<const KeptPrompts> kept) const {
  KV_CHECK(first <= last && last < ids.size());
  if (FaultActive(Fault::kEraseByFirst)) last = first;
  const Namespace named = Namespaces::Named(owner, identity, salt);
  const BlockKey root = RootKeyOf(options_.secret, owner, named.salt, named.identity);
  return ForgetFactsOf(layout(), named.owner, root, ids, first, last, std::move(kept));
}

}  // namespace kvasir
