// Shares: what each of several owners has of one thing, and may have.
#pragma once

#include <cstdint>
#include <map>

#include "base/digest.h"

namespace kvasir {

// Divides a number of equal pieces among owners. Half of them are divided among the named owners by
// weight, and kept for an owner while it has none. The rest goes to the owners that ask, at most
// half of it to one owner. With fewer than two names any owner may have all. Pieces that were taken
// stay with their owner when the names change. One thread at a time.
class Shares {
 public:
  using Weights = std::map<Digest, double>;

  // `least`: what is kept for each named owner at least.
  explicit Shares(uint64_t total, uint64_t least = 0) : total_(total), least_(least) {}
  void SetWeights(const Weights& weights);  // O(owners)

  // False: it does not fit, and nothing is taken. A named owner always gets up to its kept part,
  // unless others took it before the weights changed, or `least` for all of them is more than the
  // total. O(log owners).
  bool Take(const Digest& owner, uint64_t count);
  // Tells whether so many would fit when the owner has given back `given`.
  bool Fits(const Digest& owner, uint64_t count, uint64_t given) const;
  void Add(const Digest& owner, uint64_t count);  // has room in any case
  // Adds, as Add does, pieces that soon replace others: until EndBrief they are not in the way of
  // what is kept.
  void AddBriefly(const Digest& owner, uint64_t count);
  // Makes so many pieces that were added briefly like all others, those that were given too.
  void EndBrief(uint64_t count) { brief_ -= count; }
  // REQUIRES: it was taken or added.
  void Give(const Digest& owner, uint64_t count);

  bool are_divided() const { return are_divided_; }
  uint64_t total() const { return total_; }
  uint64_t used() const { return used_; }
  uint64_t used_by(const Digest& owner) const;
  uint64_t kept_for(const Digest& owner) const;  // all where nothing is divided

 private:
  struct Own {
    bool is_named = false;
    uint64_t kept = 0, used = 0;
    uint64_t beyond() const { return used > kept ? used - kept : 0; }
  };

  const uint64_t total_, least_;
  std::map<Digest, Own> owners_;  // that are named or have some
  bool are_divided_ = false;
  uint64_t open_ = 0;    // what is kept for no owner
  uint64_t used_ = 0;    // of all
  uint64_t beyond_ = 0;  // of all, beyond what is kept for them
  uint64_t brief_ = 0;   // added briefly; some may have been given
};

}  // namespace kvasir
