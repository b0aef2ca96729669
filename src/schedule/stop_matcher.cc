#include "schedule/stop_matcher.h"

#include <algorithm>

namespace kvasir {

std::optional<std::string_view> StopMatcher::Append(std::string_view text, std::string* out) {
  if (matched_) return std::nullopt;
  if (stops_.empty()) {
    out->append(text);
    return std::nullopt;
  }
  const size_t first_new = held_.size();
  held_.append(text);
  for (size_t end = first_new + 1; end <= held_.size(); ++end) {
    const std::string* match = nullptr;
    for (const std::string& stop : stops_) {
      if (std::string_view(held_).substr(0, end).ends_with(stop) &&
          (match == nullptr || stop.size() > match->size())) {
        match = &stop;
      }
    }
    if (match == nullptr) continue;
    out->append(held_, 0, end - match->size());
    held_.clear();
    matched_ = true;
    return *match;
  }
  const size_t certain = held_.size() - Undecided();
  out->append(held_, 0, certain);
  held_.erase(0, certain);
  return std::nullopt;
}

size_t StopMatcher::Undecided() const {
  size_t longest = 0;
  for (const std::string& stop : stops_) {
    for (size_t size = std::min(stop.size() - 1, held_.size()); size > longest; --size) {
      if (held_.ends_with(std::string_view(stop).substr(0, size))) longest = size;
    }
  }
  return longest;
}

void StopMatcher::Finish(std::string* out) {
  if (matched_) return;
  out->append(held_);
  held_.clear();
}

}  // namespace kvasir
