// Sentences: a text cut into sentences, and their translations joined again.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir {

// The rule (docs/translation.md has it with examples):
// - A sentence ends after a run of end marks (. ! ? and those of other scripts) and the closing
//   quotes and brackets after it, where white space or the end of the text follows. Full-width
//   marks of Chinese and Japanese need no white space.
// - Neither a full stop nor a mark with a closing quote or bracket ends one before a lower-case
//   letter. One full stop ends none after a single letter or a word of a short list (Dr, Mr, ...),
//   or where all before it in the sentence is digits, as in `1. First`.
// - An empty line ends a sentence; other line breaks are white space.
// Immutable; thread-safe.
class Sentences {
 public:
  // REQUIRES: text is well-formed UTF-8 and outlives this. O(bytes).
  explicit Sentences(std::string_view text);

  size_t size() const { return ranges_.size(); }
  // Returns a sentence without the white space around it; never empty.
  std::string_view At(size_t i) const {
    return text_.substr(ranges_[i].begin, ranges_[i].end - ranges_[i].begin);
  }

  // Joins one translation for each sentence: line breaks stand where they were between sentences;
  // elsewhere a space does, except after a full-width mark. Leaves out what is before the first
  // sentence and after the last.
  // REQUIRES: translations.size() == size().
  std::string Join(std::span<const std::string> translations) const;

  // Returns the white space before sentence `i` if it has a line break, else "". With Joint, joins
  // parts without the whole text.
  std::string_view BreakBefore(size_t i) const;
  // Returns what Join puts between two translations: line_break is what BreakBefore says of the
  // second one.
  static std::string_view Joint(std::string_view before, std::string_view line_break);

 private:
  struct Range {
    size_t begin, end;
  };
  void Add(size_t begin, size_t end);

  std::string_view text_;
  std::vector<Range> ranges_;
};

}  // namespace kvasir
