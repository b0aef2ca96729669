#include "cache/kv_sequence.h"

#include <algorithm>
#include <utility>

#include "cache/kv_reserves.h"

namespace kvasir {

void KvSequence::AddResumePoint(uint32_t point) {
  const auto at = std::ranges::lower_bound(resume_.all, point);
  if (at != resume_.all.end() && *at == point) return;
  if (point <= num_committed_) return;
  resume_.all.insert(at, point);
}

void KvSequence::Close() {
  if (reserved_ != nullptr) reserved_->reserves->ReleaseRest(*this);
  closed_ = true;
}

uint64_t KvSequence::FirstWindowBlock(const KvLayout& layout, uint32_t group) const {
  const uint32_t window = layout.kinds()[layout.kind_of(group)].reach.window;
  return WindowBegin(windows_from_, window) / layout.block_tokens();
}

}  // namespace kvasir
