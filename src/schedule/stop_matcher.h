// StopMatcher: cuts a stream of text at the first stop string.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace kvasir {

// Text that may begin a stop string waits until that is decided. The match that ends first wins,
// and of matches that end at the same byte the longest one, so the result does not depend on the
// pieces. Stop strings and pieces are whole UTF-8, so no character is ever cut. One thread at a
// time. `stops` must outlive the matcher.
class StopMatcher {
 public:
  // REQUIRES: no stop string is empty.
  explicit StopMatcher(std::span<const std::string> stops) : stops_(stops) {}

  // Adds text and appends the certain part to *out. Returns the stop string that ended the stream;
  // after that *out never grows. O(text x stop bytes).
  std::optional<std::string_view> Append(std::string_view text, std::string* out);
  // Ends a stream without a match: appends the text that waited.
  void Finish(std::string* out);

 private:
  size_t Undecided() const;

  std::span<const std::string> stops_;
  std::string held_;  // the longest end of the text that begins a stop string
  bool matched_ = false;
};

}  // namespace kvasir
