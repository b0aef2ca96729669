// TextReader: a text and the place in it that a parser has reached.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <system_error>

namespace kvasir {

// The base of parsers that read a text once. REQUIRES: the text outlives the reader.
class TextReader {
 protected:
  explicit TextReader(std::string_view text) : text_(text) {}

  bool AtEnd() const { return pos_ >= text_.size(); }
  bool At(char c) const { return !AtEnd() && text_[pos_] == c; }
  // Moves past `what` if it is next.
  bool Take(std::string_view what) {
    if (text_.substr(pos_, what.size()) != what) return false;
    pos_ += what.size();
    return true;
  }
  // Moves past the digits that come next, at most `most` of them, and returns how many there are.
  // *value: their number; UINT32_MAX where it is larger.
  size_t TakeDigits(int base, size_t most, uint32_t* value) {
    *value = 0;
    const char* const begin = text_.data() + pos_;
    const size_t size = std::min(most, text_.size() - pos_);
    const auto [end, error] = std::from_chars(begin, begin + size, *value, base);
    if (error == std::errc::result_out_of_range) *value = UINT32_MAX;
    pos_ += static_cast<size_t>(end - begin);
    return static_cast<size_t>(end - begin);
  }

  const std::string_view text_;
  size_t pos_ = 0;
};

}  // namespace kvasir
