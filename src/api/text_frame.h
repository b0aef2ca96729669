// TextFrame: JSON of which one text changes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/json_writer.h"

namespace kvasir {

// Holds what stands before a text and after it, made once, and written with each text: a stream has
// one event for each token, and all else in these is the same.
struct TextFrame {
  std::string begin, end;

  std::string Around(std::string_view text) const {
    std::string out;
    out.reserve(begin.size() + text.size() + end.size() + kSpare);
    out += begin;
    AppendQuoted(text, &out);
    return out += end;
  }
  uint64_t held_bytes() const { return begin.capacity() + end.capacity(); }

 private:
  static constexpr size_t kSpare = 32;  // for quotes, escapes and what the caller appends
};

}  // namespace kvasir
