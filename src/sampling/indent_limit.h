// IndentLimit: ends a text at a line that is indented too little.
#pragma once

#include <cstdint>
#include <string_view>

namespace kvasir {

// Lines count from the first line end on. What ends the text is the first byte of a line that is
// neither a space nor a tab, if fewer than `least` of these stand before it. The result does not
// depend on the pieces. One thread at a time.
class IndentLimit {
 public:
  explicit IndentLimit(uint32_t least) : least_(least) {}

  // Returns how many bytes of the next piece belong to the text.
  size_t Keep(std::string_view piece);
  bool has_ended() const { return has_ended_; }

 private:
  uint32_t least_;
  uint32_t blanks_ = 0;
  bool is_indent_ = false;  // nothing but blanks since the last line end
  bool has_ended_ = false;
};

}  // namespace kvasir
