#include "session/row_shares.h"

#include <algorithm>

#include "session/rows_room.h"

namespace kvasir {
namespace {

// Returns what a row takes of the file at most: whole pages, and its part of others.
constexpr uint64_t FileBytesOf(uint64_t row_bytes) {
  return row_bytes == 0 ? 0 : (row_bytes / (kRowsPage - 4) + 2) * kRowsPage;
}

// Returns the bytes of the pages that rows may have: PRAGMA max_page_count has all pages.
constexpr uint64_t RowPagesBytes(uint64_t max_bytes) {
  const uint64_t pages = max_bytes / 2 / kRowsPage;
  const uint64_t others = pages / 512 + 8;
  return (pages - std::min(pages, others)) * kRowsPage;
}

}  // namespace

RowShares::RowShares(uint64_t max_bytes) : total_bytes_(RowPagesBytes(max_bytes)) {}

void RowShares::Begin() {
  shares_.emplace(total_bytes_);
  shares_->SetWeights(weights_);
}

void RowShares::Add(const Digest& owner, uint64_t row_bytes) {
  shares_->Add(owner, FileBytesOf(row_bytes));
}

void RowShares::SetWeights(const Shares::Weights& weights) {
  weights_ = weights;
  if (shares_) shares_->SetWeights(weights_);
}

bool RowShares::Fits(const Digest& owner, uint64_t old_bytes, uint64_t new_bytes) {
  const uint64_t before = FileBytesOf(old_bytes), after = FileBytesOf(new_bytes);
  if (after <= before) return true;
  const bool fits = shares_->Take(owner, after - before);
  if (fits) shares_->Give(owner, after - before);
  return fits;
}

void RowShares::Change(const Digest& owner, uint64_t old_bytes, uint64_t new_bytes) {
  if (!shares_) return;
  const uint64_t before = FileBytesOf(old_bytes), after = FileBytesOf(new_bytes);
  if (after > before) shares_->Add(owner, after - before);
  if (after < before) shares_->Give(owner, before - after);
}

}  // namespace kvasir
