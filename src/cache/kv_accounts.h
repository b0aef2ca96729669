// KvAccounts: whose the blocks of a pool are, and what each owner may take of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/digest.h"
#include "block/ids.h"

namespace kvasir {

// What an owner may take of a pool, in blocks.
struct KvQuota {
  static constexpr uint32_t kNoLimit = std::numeric_limits<uint32_t>::max();

  // Idle blocks that keep the owner's sum at or below this are not taken by others.
  uint32_t guaranteed = 0;
  uint32_t max = kNoLimit;  // pinned, idle and reserved ones together

  bool operator==(const KvQuota&) const = default;
};

// Counts the blocks of each owner by state and says what an owner may still take. It makes no
// choice and moves no block: KvCache tells it each move. An owner's protected blocks are
// min(idle, guaranteed - pinned). Invariant, from which follows that each owner can draw all that
// is reserved for it, in any order:
//
//   reserved + extra pins + sum of max(0, protected - reserved), each of an owner
//     <= free blocks + idle blocks
//
// All calls take O(1), except Enter and ApplyGuarantees: O(accounts). Allocates only in its
// constructor. One thread at a time.
class KvAccounts {
 public:
  struct Account {
    Digest owner{};
    KvQuota quota;
    uint32_t guaranteed = 0;  // of quota.guaranteed: what the invariant leaves room for so far
    uint32_t pinned = 0, idle = 0, reserved = 0;
    uint64_t extra_pins = 0;  // of unshareable blocks, beyond each one's first

    uint32_t held() const { return pinned + idle; }
    uint64_t used() const { return pinned + uint64_t{reserved} + extra_pins; }
    uint32_t protected_idle() const;
    uint32_t locked() const {
      const uint32_t kept = protected_idle();
      return kept - std::min(kept, reserved);
    }
    bool is_unused() const {
      return held() == 0 && reserved == 0 && quota.guaranteed == 0 &&
             quota.max == KvQuota::kNoLimit;
    }
  };

  KvAccounts(uint32_t num_owners, uint32_t num_blocks);
  static uint64_t BytesFor(uint32_t num_owners) {
    return (uint64_t{num_owners} + 1) * sizeof(Account);
  }

  // Returns the account of an owner; a new one takes the place of one without blocks and quota.
  // kNobody where there is none.
  AccountId Enter(const Digest& owner);
  // Sets guarantee and maximum. A larger guarantee holds as soon as the invariant allows it: not
  // while others have reserved those blocks.
  void SetQuota(AccountId account, const KvQuota& quota);
  void ApplyGuarantees();
  bool has_quotas() const { return has_quotas_; }

  // Moves of blocks.
  void OnAllocated(AccountId account);  // free -> pinned
  void OnFreed(AccountId account);      // pinned -> free
  void OnIdle(AccountId account);       // pinned -> idle
  void OnPinned(AccountId account);     // idle -> pinned
  void OnReclaimed(AccountId account);  // idle -> free
  void OnExtraPins(AccountId account, int32_t change);
  void Reserve(AccountId account, uint32_t num_blocks);
  void Release(AccountId account, uint32_t num_blocks);

  // Returns how many blocks the owner may reserve or pin now: what is free or idle, less what is
  // reserved, what others protect, and what its maximum leaves.
  uint32_t available(AccountId account) const;
  // Returns the same without regard to the owner's maximum.
  uint32_t unreserved(AccountId account) const;
  uint32_t reserved() const { return reserved_; }
  // Tells whether the owner must take an idle block that it owns next: it has its maximum, or any
  // other block is one that somebody else must be able to draw.
  bool must_take_own(AccountId account) const;
  // Tells whether others may take an idle block of it.
  bool may_lose(AccountId account) const;
  // Tells whether it has pinned or reserved more than its guarantee.
  bool is_above_guarantee(AccountId account) const {
    return of(account).used() > of(account).quota.guaranteed;
  }
  const Account& of(AccountId account) const { return accounts_[static_cast<size_t>(account)]; }
  size_t size() const { return accounts_.size(); }
  uint64_t bytes() const { return accounts_.capacity() * sizeof(Account); }
  void CheckInvariants() const;  // O(accounts)

 private:
  template <typename F>
  void Change(AccountId account, F&& change);
  int64_t slack() const;

  std::vector<Account> accounts_;  // [0]: kNobody
  const uint32_t num_blocks_;
  uint32_t pinned_ = 0, reserved_ = 0;
  uint64_t extra_pins_ = 0, locked_ = 0;
  bool has_quotas_ = false;
  bool has_pending_ = false;  // a guarantee is not applied in full
};

}  // namespace kvasir
