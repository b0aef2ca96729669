#include "schedule/head_batch.h"

#include <algorithm>

namespace kvasir {

HeadBatch::HeadBatch(Runner& runner, uint32_t max_heads, uint32_t logit_rows)
    : runner_(runner),
      vocab_size_(runner.config().vocab_size),
      logit_rows_(logit_rows),
      logits_(size_t{logit_rows} * vocab_size_) {
  heads_.reserve(max_heads);
  hidden_.reserve(logit_rows);
}

void HeadBatch::Clear() {
  heads_.clear();
  next_ = 0;
}

size_t HeadBatch::GroupEnd() const {
  size_t end = std::min<size_t>(next_ + logit_rows_, heads_.size());
  const auto is_between_beams = [&] {
    return end < heads_.size() && heads_[end].request->answer.search && heads_[end].sample &&
           heads_[end - 1].sample && heads_[end].request == heads_[end - 1].request;
  };
  while (is_between_beams()) --end;
  return end;
}

std::span<const Head> HeadBatch::ComputeNext() {
  const auto heads = std::span<const Head>(heads_).subspan(next_, GroupEnd() - next_);
  if (heads.empty()) return heads;
  next_ += heads.size();
  hidden_.clear();
  for (const Head& head : heads) hidden_.push_back(head.hidden);
  num_used_ = std::max(num_used_, heads.size());
  runner_.Logits(hidden_, logits_.data());
  return heads;
}

void HeadBatch::Zero() {
  std::fill_n(logits_.begin(), num_used_ * vocab_size_, 0.0f);
  num_used_ = 0;
}

}  // namespace kvasir
