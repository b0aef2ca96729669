// RowShares: what the rows of each owner take of the file, and may take.
#pragma once

#include <cstdint>
#include <optional>

#include "base/digest.h"
#include "base/shares.h"

namespace kvasir {

// Counts rows in whole pages of the file. States: unknown (the table must be read: Begin, then Add
// for each row) -> known, until Forget. One thread at a time.
class RowShares {
 public:
  // `max_bytes`: of the file and its log.
  explicit RowShares(uint64_t max_bytes);

  bool is_known() const { return shares_.has_value(); }
  // Begins to count with no row.
  void Begin();
  // Counts a row. REQUIRES: is_known().
  void Add(const Digest& owner, uint64_t row_bytes);
  // Makes the counts unknown: rows were removed of which nothing else is known.
  void Forget() { shares_.reset(); }

  // Sets how the file is divided from now on. O(owners).
  void SetWeights(const Shares::Weights& weights);
  bool are_divided() const { return weights_.size() > 1; }
  // Tells whether a row of the owner may have `new_bytes` instead of `old_bytes`; 0: there is no
  // row. O(log owners). REQUIRES: is_known().
  bool Fits(const Digest& owner, uint64_t old_bytes, uint64_t new_bytes);
  // Counts that a row was changed, added or removed (0 bytes), if the counts are known.
  // O(log owners).
  void Change(const Digest& owner, uint64_t old_bytes, uint64_t new_bytes);

  // REQUIRES: is_known().
  uint64_t used_by(const Digest& owner) const { return shares_->used_by(owner); }
  uint64_t kept_for(const Digest& owner) const { return shares_->kept_for(owner); }

 private:
  const uint64_t total_bytes_;
  Shares::Weights weights_;
  std::optional<Shares> shares_;
};

}  // namespace kvasir
