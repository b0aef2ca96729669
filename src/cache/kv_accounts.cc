#include "cache/kv_accounts.h"

#include <algorithm>

#include "base/check.h"

namespace kvasir {

KvAccounts::KvAccounts(uint32_t num_owners, uint32_t num_blocks) : num_blocks_(num_blocks) {
  KV_CHECK(num_owners < std::numeric_limits<uint16_t>::max());
  accounts_.reserve(size_t{num_owners} + 1);
  accounts_.emplace_back();
}

uint32_t KvAccounts::Account::protected_idle() const {
  return std::min(idle, guaranteed - std::min(guaranteed, pinned));
}

AccountId KvAccounts::Enter(const Digest& owner) {
  for (size_t i = 1; i < accounts_.size(); ++i) {
    if (accounts_[i].owner == owner) return AccountId(i);
  }
  if (accounts_.size() < accounts_.capacity()) {
    accounts_.push_back({.owner = owner});
    return AccountId(accounts_.size() - 1);
  }
  for (size_t i = 1; i < accounts_.size(); ++i) {
    if (!accounts_[i].is_unused()) continue;
    accounts_[i] = {.owner = owner};
    return AccountId(i);
  }
  return kNobody;
}

// Changes an account and the sums with it.
template <typename F>
void KvAccounts::Change(AccountId id, F&& change) {
  Account& account = accounts_[static_cast<size_t>(id)];
  locked_ -= account.locked();
  change(account);
  locked_ += account.locked();
}

int64_t KvAccounts::slack() const {
  const int64_t there = int64_t{num_blocks_} - pinned_;
  return there - reserved_ - static_cast<int64_t>(extra_pins_ + locked_);
}

void KvAccounts::SetQuota(AccountId id, const KvQuota& quota) {
  KV_CHECK(id != kNobody);
  Change(id, [&](Account& account) {
    account.quota = quota;
    account.guaranteed = std::min(account.guaranteed, quota.guaranteed);
  });
  has_pending_ = true;
  has_quotas_ = std::ranges::any_of(accounts_, [](const Account& account) {
    return account.quota.guaranteed > 0 || account.quota.max != KvQuota::kNoLimit;
  });
  ApplyGuarantees();
}

void KvAccounts::ApplyGuarantees() {
  if (!has_pending_) return;
  has_pending_ = false;
  for (size_t i = 1; i < accounts_.size(); ++i) {
    Account& account = accounts_[i];
    const uint32_t wanted = account.quota.guaranteed;
    if (account.guaranteed == wanted) continue;
    Change(AccountId(i), [&](Account& each) { each.guaranteed = wanted; });
    if (slack() >= 0) continue;
    // Each block less of the guarantee is one locked block less.
    const auto missing = static_cast<uint32_t>(std::min<int64_t>(-slack(), wanted));
    Change(AccountId(i), [&](Account& each) {
      each.guaranteed = std::min(wanted, each.pinned + each.idle) - missing;
    });
    has_pending_ = true;
  }
}

void KvAccounts::OnAllocated(AccountId id) {
  ++pinned_;
  Change(id, [](Account& account) { ++account.pinned; });
}

void KvAccounts::OnFreed(AccountId id) {
  --pinned_;
  Change(id, [](Account& account) { --account.pinned; });
}

void KvAccounts::OnIdle(AccountId id) {
  --pinned_;
  Change(id, [](Account& account) {
    --account.pinned;
    ++account.idle;
  });
}

void KvAccounts::OnPinned(AccountId id) {
  ++pinned_;
  Change(id, [](Account& account) {
    ++account.pinned;
    --account.idle;
  });
}

void KvAccounts::OnReclaimed(AccountId id) {
  Change(id, [](Account& account) { --account.idle; });
}

void KvAccounts::OnExtraPins(AccountId id, int32_t change) {
  accounts_[static_cast<size_t>(id)].extra_pins += static_cast<int64_t>(change);
  extra_pins_ += static_cast<int64_t>(change);
}

void KvAccounts::Reserve(AccountId id, uint32_t num_blocks) {
  reserved_ += num_blocks;
  Change(id, [&](Account& account) { account.reserved += num_blocks; });
}

void KvAccounts::Release(AccountId id, uint32_t num_blocks) {
  KV_CHECK(of(id).reserved >= num_blocks);
  reserved_ -= num_blocks;
  Change(id, [&](Account& account) { account.reserved -= num_blocks; });
}

uint32_t KvAccounts::unreserved(AccountId id) const {
  return static_cast<uint32_t>(std::max<int64_t>(0, slack() + of(id).locked()));
}

uint32_t KvAccounts::available(AccountId id) const {
  const Account& account = of(id);
  const uint64_t left = account.quota.max - std::min<uint64_t>(account.quota.max, account.used());
  return static_cast<uint32_t>(std::min<uint64_t>(unreserved(id), left));
}

bool KvAccounts::must_take_own(AccountId id) const {
  const Account& account = of(id);
  if (account.idle == 0) return false;
  if (account.held() >= account.quota.max) return true;
  // One more pinned block: is it one less that is locked?
  Account after = account;
  ++after.pinned;
  return slack() + account.locked() - after.locked() < 1;
}

bool KvAccounts::may_lose(AccountId id) const { return of(id).idle > of(id).protected_idle(); }

void KvAccounts::CheckInvariants() const {
  uint64_t pinned = 0, reserved = 0, extra_pins = 0, locked = 0;
  for (const Account& account : accounts_) {
    KV_CHECK(account.guaranteed <= account.quota.guaranteed);
    pinned += account.pinned;
    reserved += account.reserved;
    extra_pins += account.extra_pins;
    locked += account.locked();
  }
  KV_CHECK(pinned == pinned_ && reserved == reserved_);
  KV_CHECK(extra_pins == extra_pins_ && locked == locked_);
}

}  // namespace kvasir
