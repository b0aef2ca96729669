#include "cache/kv_sequence.h"

#include <algorithm>
#include <utility>

#include "cache/kv_reserves.h"

namespace kvasir {

void KvSequence::AddResumePoint(uint32_t point) {
  const auto at = std::ranges::lower_bound(resume_points_, point);
  if (at != resume_points_.end() && *at == point) return;
  if (point <= num_committed_) return;
  resume_points_.insert(at, point);
}

void KvSequence::Close() {
  if (reserved_ != nullptr) reserved_->reserves->ReleaseRest(*this);
  closed_ = true;
}

KvSequence& KvSequence::operator=(KvSequence&& other) noexcept {
  if (this == &other) return *this;
  Close();
  // Releases the blocks before the hold on their node, so that the node is bare if nothing else
  // needs it.
  tables_ = std::move(other.tables_);
  place_ = std::move(other.place_);
  shares_ = other.shares_;
  stores_ = other.stores_;
  windows_from_ = other.windows_from_;
  account_ = other.account_;
  num_committed_ = std::exchange(other.num_committed_, 0);
  closed_ = other.closed_;
  unbacked_ = other.unbacked_;
  reserved_ = std::move(other.reserved_);
  tokens_ = std::move(other.tokens_);
  resume_points_ = std::move(other.resume_points_);
  next_resume_ = other.next_resume_;
  source_tokens_ = other.source_tokens_;
  source_nodes_ = other.source_nodes_;
  has_source_ = other.has_source_;
  source_ = std::move(other.source_);
  return *this;
}

}  // namespace kvasir
