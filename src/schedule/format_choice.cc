#include "schedule/format_choice.h"

namespace kvasir {

std::optional<bool> FormatChoice::Leads(TokenId id, WalkSteps& steps) {
  if (id_ != id) {
    id_ = id;
    text_.emplace(at_, masks_.trie().text(id));
  }
  waits_ = !text_->Run(steps);
  if (waits_) return std::nullopt;
  return text_->next().has_value();
}

std::span<uint64_t> FormatChoice::Legal(WalkSteps& steps) {
  if (!knows_mask_) {
    if (!mask_) mask_.emplace(masks_, at_, row_->legal);
    waits_ = !mask_->Run(steps);
    if (waits_) return {};
    mask_.reset();
    knows_mask_ = true;
  }
  return row_->legal;
}

bool FormatChoice::Run(WalkSteps& steps) {
  if (mask_) {
    (void)Legal(steps);
  } else if (waits_) {
    waits_ = !text_->Run(steps);
  }
  return !waits_;
}

}  // namespace kvasir
