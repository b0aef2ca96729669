// How pre-tokenizers cut words into shorter ones.
#pragma once

#include <cstddef>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "text/pretokenizer.h"

namespace kvasir {

// What becomes of a match: SplitDelimiterBehavior of `tokenizers`.
enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// A piece of a word, [begin, end) of it: a match, or what is between two.
struct WordPart {
  size_t begin, end;
  bool is_match;
};

// Takes the words that a word is cut into, in order.
using Emit = std::function<void(Words::Range)>;

// Joins the parts of one word, which come in order and without gaps, as the behavior says.
class PartJoiner {
 public:
  PartJoiner(Behavior behavior, const Words::Range& word, const Emit& emit)
      : behavior_(behavior), word_(word), emit_(emit) {}

  void Add(const WordPart& part) {
    if (behavior_ == Behavior::kRemoved && part.is_match) return;
    if (waits_ && Joins(part)) {
      last_.end = part.end;
      last_.is_match = part.is_match;
      return;
    }
    Finish();
    last_ = part;
    waits_ = true;
  }
  void Finish() {
    if (!waits_ || last_.begin == last_.end) return;
    emit_({word_.begin + last_.begin, word_.begin + last_.end,
           last_.begin == 0 ? word_.start : TextStart::kInside});
    waits_ = false;
  }

 private:
  bool Joins(const WordPart& part) const {
    switch (behavior_) {
      case Behavior::kIsolated:
      case Behavior::kRemoved:
        return false;
      case Behavior::kContiguous:
        return part.is_match == last_.is_match;
      case Behavior::kMergedWithPrevious:
        return part.is_match && !last_.is_match;
      case Behavior::kMergedWithNext:
        return !part.is_match && last_.is_match;
    }
    return false;
  }

  const Behavior behavior_;
  const Words::Range word_;
  const Emit& emit_;
  WordPart last_{};
  bool waits_ = false;  // last_ may still grow
};

// Splits every word at what find(word, visit) reports: visit(begin, end, is_match) for part after
// part of the word. Ends with find's first error.
template <typename Find>
Status SplitWords(Behavior behavior, const Find& find, const Words& words, const Emit& emit) {
  for (size_t i = 0; i < words.ranges.size(); ++i) {
    PartJoiner joiner(behavior, words.ranges[i], emit);
    KV_TRY(find(words.At(i), [&](size_t begin, size_t end, bool is_match) {
      joiner.Add({begin, end, is_match});
    }));
    joiner.Finish();
  }
  return {};
}

// A step that leaves the text as it is and only cuts its words into shorter ones, in order.
class CuttingStep : public PreTokenizer {
 public:
  virtual Status Cut(const Words& words, const Emit& emit) const = 0;

  Status Apply(Words* words) const override {
    std::vector<Words::Range> ranges;
    ranges.reserve(words->ranges.size());
    KV_TRY(Cut(*words, [&ranges](const Words::Range& range) { ranges.push_back(range); }));
    words->ranges = std::move(ranges);
    return {};
  }
};

}  // namespace kvasir
