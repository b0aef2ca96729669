#include "schedule/format_choice.h"

#include <utility>

#include "base/check.h"

namespace kvasir {

const Matcher* FormatChoice::At(WalkSteps& steps) {
  for (; !unread_.empty(); unread_ = unread_.subspan(1)) {
    if (!read_) read_.emplace(at_, masks_.trie().text(unread_.front()));
    waits_ = !read_->Run(steps);
    if (waits_) return nullptr;
    KV_CHECK(read_->next().has_value());  // it was read before
    at_ = std::move(*read_->next());
    read_.reset();
  }
  return &at_;
}

std::optional<bool> FormatChoice::Leads(TokenId id, WalkSteps& steps) {
  if (At(steps) == nullptr) return std::nullopt;
  if (id_ != id) {
    id_ = id;
    text_.emplace(at_, masks_.trie().text(id));
  }
  waits_ = !text_->Run(steps);
  if (waits_) return std::nullopt;
  return text_->next().has_value();
}

std::span<uint64_t> FormatChoice::Legal(WalkSteps& steps) {
  if (At(steps) == nullptr) return {};
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
  if (!unread_.empty()) {
    (void)At(steps);
  } else if (mask_) {
    (void)Legal(steps);
  } else if (waits_) {
    waits_ = !text_->Run(steps);
  }
  return !waits_;
}

}  // namespace kvasir
