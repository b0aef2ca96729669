#include "sampling/indent_limit.h"

namespace kvasir {

size_t IndentLimit::Keep(std::string_view piece) {
  for (size_t i = 0; i < piece.size() && !has_ended_; ++i) {
    const char c = piece[i];
    if (is_indent_ && (c == ' ' || c == '\t')) {
      ++blanks_;
      continue;
    }
    if (is_indent_ && blanks_ < least_) {
      has_ended_ = true;
      return i;
    }
    is_indent_ = c == '\n';
    blanks_ = 0;
  }
  return has_ended_ ? 0 : piece.size();
}

}  // namespace kvasir
