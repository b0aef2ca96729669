// Text that knows the origin of its bytes, and iteration over code points for Python's strings.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir::jinja {

struct Origin {
  std::optional<uint32_t> message;  // the message that the byte belongs to, where known
  bool input = false;               // data from outside: never part of a special token
  uint32_t part = 0;                // the number of its ChatPart, from 1 on; 0: none
  bool operator==(const Origin&) const = default;
};

// Bytes with the origin of each, kept as runs: the value of every string in a template. All string
// operations are built from Append and Slice, so none can lose an origin. Invariant: runs cover all
// bytes, in order, none empty.
class Text {
 public:
  struct Run {
    uint32_t end;
    Origin origin;
  };

  Text() = default;
  explicit Text(std::string_view bytes, Origin origin = {}) { Append(bytes, origin); }

  const std::string& bytes() const { return bytes_; }
  std::string_view view() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  std::span<const Run> runs() const {
    return more_.empty() ? std::span(&first_, bytes_.empty() ? 0 : 1) : std::span(more_);
  }
  std::string TakeBytes() && { return std::move(bytes_); }

  // REQUIRES: less than 4 GiB in all.
  void Append(std::string_view bytes, Origin origin);
  void Reserve(size_t bytes) { bytes_.reserve(bytes); }
  void Append(const Text& other);
  void Append(const Text& other, size_t begin, size_t end);
  // Appends like Append; bytes without a message become part of `message`.
  void AppendFor(const Text& other, std::optional<uint32_t> message);
  Text Slice(size_t begin, size_t end) const;
  Origin OriginAt(size_t offset) const;  // REQUIRES: offset < size(). O(log runs).
  // Returns the origin of a value made from all of these bytes: input if any byte is input.
  Origin Summary() const;

 private:
  std::string bytes_;
  Run first_{};            // the only run, while more_ is empty: most texts have one
  std::vector<Run> more_;  // all runs, if there are several
};

// Returns the first place of `part` in `text` at or after `begin`, and the last place; npos without
// one. O(text + part) for any content. REQUIRES: part is not empty.
size_t FindText(std::string_view text, std::string_view part, size_t begin = 0);
size_t FindLastText(std::string_view text, std::string_view part);

// Reads characters of UTF-8. Bytes that are not UTF-8 (only a template's own source can hold them)
// count as one character each and are never changed.
size_t CharSize(std::string_view text, size_t offset);       // bytes of the character at offset
char32_t CharAt(std::string_view text, size_t offset);       // its code point
size_t PreviousChar(std::string_view text, size_t offset);   // start of the character before
size_t CharCount(std::string_view text);                     // O(size)
size_t CharOffset(std::string_view text, size_t character);  // size() when past the end

// Does as Python's str.isspace, isprintable, isalpha and full upper and lower mappings of one
// character.
bool IsSpace(char32_t code);
bool IsPrintable(char32_t code);
bool IsAlpha(char32_t code);
std::string UpperOf(char32_t code);
std::string LowerOf(char32_t code);

// Joins what `map` makes of each character, from its code point and its offset; the result has the
// character's origin. Keeps bytes that are not UTF-8.
Text MapChars(const Text& text, const std::function<std::string(char32_t, size_t)>& map);
Text Upper(const Text& text);
Text Lower(const Text& text);
Text Capitalize(const Text& text);

}  // namespace kvasir::jinja
