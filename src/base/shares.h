// Shares: what each of several owners has of one thing, and may have.
#pragma once

#include <cstdint>
#include <map>

#include "base/digest.h"

namespace kvasir {

// Half of the thing is divided among the named owners by weight, and kept for them while they have
// none of it. What is left goes to who asks: to one owner at most half of that. Fewer than two
// names: whoever asks may have all. What was taken stays, whatever names come later. One thread at
// a time.
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
  void Add(const Digest& owner, uint64_t count);  // has room in any case
  // Like Add, of what soon replaces something larger: it is not in the way of what is kept.
  void AddBriefly(const Digest& owner, uint64_t count);
  // REQUIRES: it was taken or added, or (GiveBrief) added briefly.
  void Give(const Digest& owner, uint64_t count);
  void GiveBrief(const Digest& owner, uint64_t count);

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
  uint64_t open_ = 0;    // what is kept for nobody
  uint64_t used_ = 0;    // of all
  uint64_t beyond_ = 0;  // of all, beyond what is kept for them
  uint64_t brief_ = 0;   // part of used_
};

}  // namespace kvasir
