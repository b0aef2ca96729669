#include "text/pretokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/result.h"
#include "text/byte_level.h"
#include "text/json_fields.h"
#include "text/pattern.h"
#include "text/utf8.h"

namespace kvasir {
namespace {

constexpr size_t kMaxGrowth = 64;  // of a text

using Step = std::unique_ptr<PreTokenizer>;

// What becomes of a match: SplitDelimiterBehavior of `tokenizers`.
enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

Result<Behavior> ParseBehavior(const nlohmann::json& value, const char* fallback) {
  KV_ASSIGN(const std::string name, StringField(value, "behavior", fallback));
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  return Fail(Code::kUnsupported, "tokenizer.json: split behavior \"{}\" is not supported", name);
}

struct Part {
  size_t begin, end;
  bool is_match;
};

// Joins the parts of one word as the behavior says; parts are in order and without gaps.
void JoinParts(Behavior behavior, std::vector<Part>* parts) {
  size_t kept = 0;
  bool previous = false;
  if (behavior == Behavior::kMergedWithNext) std::reverse(parts->begin(), parts->end());
  for (const Part part : *parts) {
    bool join = false;
    switch (behavior) {
      case Behavior::kIsolated:
        break;
      case Behavior::kRemoved:
        if (part.is_match) continue;
        break;
      case Behavior::kContiguous:
        join = part.is_match == previous;
        break;
      case Behavior::kMergedWithPrevious:
      case Behavior::kMergedWithNext:
        join = part.is_match && !previous;
        break;
    }
    previous = part.is_match;
    if (join && kept > 0) {
      Part& last = (*parts)[kept - 1];
      last.begin = std::min(last.begin, part.begin);
      last.end = std::max(last.end, part.end);
    } else {
      (*parts)[kept++] = part;
    }
  }
  parts->resize(kept);
  if (behavior == Behavior::kMergedWithNext) std::reverse(parts->begin(), parts->end());
}

// Splits every word at what find(word, visit) reports.
template <typename Find>
Status SplitWords(Behavior behavior, const Find& find, Words* words) {
  std::vector<Words::Range> ranges;
  ranges.reserve(words->ranges.size());
  std::vector<Part> parts;
  for (size_t i = 0; i < words->ranges.size(); ++i) {
    const Words::Range& range = words->ranges[i];
    parts.clear();
    KV_TRY(find(words->At(i), [&](size_t begin, size_t end, bool is_match) {
      parts.push_back({begin, end, is_match});
    }));
    JoinParts(behavior, &parts);
    for (const Part& part : parts) {
      if (part.begin == part.end) continue;
      ranges.push_back(
          {range.begin + part.begin, range.begin + part.end, range.at_start && part.begin == 0});
    }
  }
  words->ranges = std::move(ranges);
  return {};
}

// Rewrites every word: write(word, at_start, out) appends what it becomes.
template <typename Write>
void RewriteWords(const Write& write, Words* words) {
  std::string text;
  text.reserve(words->text.size() * 3 / 2);
  for (size_t i = 0; i < words->ranges.size(); ++i) {
    const size_t begin = text.size();
    write(words->At(i), words->ranges[i].at_start, &text);
    words->ranges[i].begin = begin;
    words->ranges[i].end = text.size();
  }
  words->text = std::move(text);
}

class SplitStep : public PreTokenizer {
 public:
  SplitStep(Pattern pattern, Behavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}
  Status Apply(Words* words) const override {
    return SplitWords(
        behavior_,
        [this](std::string_view word, const auto& visit) {
          return pattern_.Split(word, [&](size_t begin, size_t end, bool is_match) {
            visit(begin, end, is_match != invert_);
          });
        },
        words);
  }

 private:
  Pattern pattern_;
  Behavior behavior_;
  bool invert_;
};

// Each character of a class is a match.
class CharStep : public PreTokenizer {
 public:
  CharStep(bool (*is_match)(char32_t), Behavior behavior)
      : is_match_(is_match), behavior_(behavior) {}
  Status Apply(Words* words) const override {
    return SplitWords(
        behavior_,
        [this](std::string_view word, const auto& visit) -> Status {
          size_t done = 0;
          for (size_t pos = 0; pos < word.size();) {
            const size_t begin = pos;
            if (!is_match_(NextChar(word, &pos))) continue;
            if (done < begin) visit(done, begin, false);
            visit(begin, pos, true);
            done = pos;
          }
          if (done < word.size()) visit(done, word.size(), false);
          return {};
        },
        words);
  }

 private:
  bool (*is_match_)(char32_t);
  Behavior behavior_;
};

class RustWordsStep : public PreTokenizer {
 public:
  Status Apply(Words* words) const override {
    return SplitWords(
        Behavior::kRemoved,
        [](std::string_view word, const auto& visit) -> Status {
          Regex::Finder finder(Regex::RustWords(), word);
          while (true) {
            KV_ASSIGN(const std::optional<TextMatch> match, finder.Next());
            if (!match) return {};
            visit(match->begin, match->end, false);
          }
        },
        words);
  }
};

class ByteLevelStep : public PreTokenizer {
 public:
  ByteLevelStep(bool add_prefix_space, std::optional<SplitStep> split)
      : add_prefix_space_(add_prefix_space), split_(std::move(split)) {}
  Status Apply(Words* words) const override {
    if (add_prefix_space_) {
      RewriteWords(
          [](std::string_view word, bool, std::string* out) {
            if (!word.starts_with(' ')) *out += ' ';
            *out += word;
          },
          words);
    }
    if (split_) KV_TRY(split_->Apply(words));
    RewriteWords(
        [](std::string_view word, bool, std::string* out) {
          for (char c : word) *out += ByteLevelChar(static_cast<uint8_t>(c));
        },
        words);
    return {};
  }

 private:
  bool add_prefix_space_;
  std::optional<SplitStep> split_;
};

class MetaspaceStep : public PreTokenizer {
 public:
  enum class Prepend { kNever, kFirst, kAlways };
  MetaspaceStep(std::string replacement, Prepend prepend, bool split)
      : replacement_(std::move(replacement)), prepend_(prepend), split_(split) {}

  Status Apply(Words* words) const override {
    RewriteWords(
        [this](std::string_view word, bool at_start, std::string* out) {
          const bool prepend =
              prepend_ == Prepend::kAlways || (prepend_ == Prepend::kFirst && at_start);
          if (prepend && !word.starts_with(' ') && !word.starts_with(replacement_)) {
            *out += replacement_;
          }
          for (char c : word) {
            if (c == ' ') {
              *out += replacement_;
            } else {
              *out += c;
            }
          }
        },
        words);
    if (!split_) return {};
    return SplitWords(
        Behavior::kMergedWithNext,
        [this](std::string_view word, const auto& visit) -> Status {
          size_t done = 0;
          for (size_t at = word.find(replacement_); at != word.npos;
               at = word.find(replacement_, done)) {
            if (done < at) visit(done, at, false);
            done = at + replacement_.size();
            visit(at, done, true);
          }
          if (done < word.size()) visit(done, word.size(), false);
          return {};
        },
        words);
  }

 private:
  std::string replacement_;
  Prepend prepend_;
  bool split_;
};

// All Sequences, however nested, become one list: then this is the only place where text can grow
// step by step, and a hostile file cannot make it explode.
class SequenceStep : public PreTokenizer {
 public:
  explicit SequenceStep(std::vector<Step> steps) : steps_(std::move(steps)) {}
  Status Apply(Words* words) const override {
    const size_t max_bytes = kMaxGrowth * words->text.size() + (64 << 10);
    for (const auto& step : steps_) {
      KV_TRY(step->Apply(words));
      if (words->text.size() > max_bytes) {
        return Fail(Code::kInvalidArgument,
                    "tokenizer: the pre-tokenizer makes the text {} times longer", kMaxGrowth);
      }
    }
    return {};
  }

 private:
  std::vector<Step> steps_;
};

Result<Step> ParseByteLevel(const nlohmann::json& value) {
  KV_ASSIGN(const bool add_prefix_space, BoolField(value, "add_prefix_space", true));
  KV_ASSIGN(const bool use_regex, BoolField(value, "use_regex", true));
  std::optional<SplitStep> split;
  if (use_regex) {
    KV_ASSIGN(Regex regex, Regex::Compile(R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+)"
                                          R"(| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"));
    split.emplace(Pattern(std::move(regex)), Behavior::kIsolated, false);
  }
  return std::make_unique<ByteLevelStep>(add_prefix_space, std::move(split));
}

Result<Step> ParseMetaspace(const nlohmann::json& value) {
  KV_ASSIGN(std::string replacement, StringField(value, "replacement", "\xE2\x96\x81"));
  size_t pos = 0;
  if (replacement.empty() || (NextChar(replacement, &pos), pos != replacement.size())) {
    return Fail(Code::kCorruption, "tokenizer.json: Metaspace.replacement is not one character");
  }
  // Old files say add_prefix_space.
  KV_ASSIGN(const bool prefix, BoolField(value, "add_prefix_space", true));
  KV_ASSIGN(const std::string scheme,
            StringField(value, "prepend_scheme", prefix ? "always" : "never"));
  KV_ASSIGN(const bool split, BoolField(value, "split", true));
  using Prepend = MetaspaceStep::Prepend;
  Prepend prepend = Prepend::kAlways;
  if (scheme == "first") {
    prepend = Prepend::kFirst;
  } else if (scheme == "never") {
    prepend = Prepend::kNever;
  } else if (scheme != "always") {
    return Fail(Code::kUnsupported, "tokenizer.json: prepend_scheme \"{}\" is not supported",
                scheme);
  }
  return std::make_unique<MetaspaceStep>(std::move(replacement), prepend, split);
}

Result<Step> ParseStep(const nlohmann::json& value) {
  KV_ASSIGN(const std::string type, StringField(value, "type", ""));
  if (type == "ByteLevel") return ParseByteLevel(value);
  if (type == "Metaspace") return ParseMetaspace(value);
  if (type == "Whitespace") return std::make_unique<RustWordsStep>();
  if (type == "WhitespaceSplit") {
    return std::make_unique<CharStep>(&IsWhitespace, Behavior::kRemoved);
  }
  if (type == "Split") {
    KV_ASSIGN(Pattern pattern, Pattern::Parse(value));
    KV_ASSIGN(const Behavior behavior, ParseBehavior(value, ""));
    KV_ASSIGN(const bool invert, BoolField(value, "invert", false));
    return std::make_unique<SplitStep>(std::move(pattern), behavior, invert);
  }
  if (type == "Digits") {
    KV_ASSIGN(const bool individual, BoolField(value, "individual_digits", false));
    return std::make_unique<CharStep>(&IsNumeric,
                                      individual ? Behavior::kIsolated : Behavior::kContiguous);
  }
  if (type == "Punctuation") {
    KV_ASSIGN(const Behavior behavior, ParseBehavior(value, "Isolated"));
    return std::make_unique<CharStep>(&IsPunctuation, behavior);
  }
  if (type == "BertPreTokenizer") {
    std::vector<Step> steps;
    steps.push_back(std::make_unique<CharStep>(&IsWhitespace, Behavior::kRemoved));
    steps.push_back(std::make_unique<CharStep>(&IsPunctuation, Behavior::kIsolated));
    return std::make_unique<SequenceStep>(std::move(steps));
  }
  return Fail(Code::kUnsupported, "tokenizer.json: pre-tokenizer \"{}\" is not supported", type);
}

Status ParseSteps(const nlohmann::json& value, int depth, std::vector<Step>* steps) {
  if (!value.is_object())
    return Fail(Code::kCorruption, "tokenizer.json: pre-tokenizer: no object");
  if (value.value("type", nlohmann::json()) != "Sequence") {
    KV_ASSIGN(Step step, ParseStep(value));
    steps->push_back(std::move(step));
    return {};
  }
  const auto list = value.find("pretokenizers");
  if (list == value.end() || !list->is_array() || depth == 0) {
    return Fail(Code::kCorruption,
                "tokenizer.json: pre-tokenizer Sequence has no list, or nests too deep");
  }
  for (const auto& item : *list) KV_TRY(ParseSteps(item, depth - 1, steps));
  return {};
}

}  // namespace

Result<std::unique_ptr<PreTokenizer>> PreTokenizer::Parse(const nlohmann::json& value) {
  std::vector<Step> steps;
  if (!value.is_null()) KV_TRY(ParseSteps(value, kMaxNesting, &steps));
  return std::make_unique<SequenceStep>(std::move(steps));
}

}  // namespace kvasir
