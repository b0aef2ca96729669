#include "text/pretokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/result.h"
#include "base/utf8.h"
#include "text/byte_level.h"
#include "text/pattern.h"
#include "text/tokenizer_json.h"
#include "text/word_cuts.h"

namespace kvasir {
namespace {

constexpr size_t kMaxGrowth = 64;  // of a text
constexpr size_t kMaxSteps = 256;

using Step = std::unique_ptr<PreTokenizer>;

Result<Behavior> ParseBehavior(const nlohmann::json& value, const char* fallback) {
  KV_ASSIGN(const std::string name, StringField(value, "behavior", fallback));
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  return Fail(Code::kUnsupported, "tokenizer.json: split behavior \"{}\" is not supported", name);
}

// Rewrites every word: write(word, start, out) appends what it becomes.
template <typename Write>
void RewriteWords(const Write& write, Words* words) {
  std::string text;
  text.reserve(words->text.size() * 3 / 2);
  for (size_t i = 0; i < words->ranges.size(); ++i) {
    const size_t begin = text.size();
    write(words->At(i), words->ranges[i].start, &text);
    words->ranges[i].begin = begin;
    words->ranges[i].end = text.size();
  }
  words->text = std::move(text);
}

class SplitStep : public CuttingStep {
 public:
  SplitStep(Pattern pattern, Behavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}
  Status Cut(const Words& words, const Emit& emit) const override {
    return SplitWords(
        behavior_,
        [this](std::string_view word, const auto& visit) {
          return pattern_.Split(word, [&](size_t begin, size_t end, bool is_match) {
            visit(begin, end, is_match != invert_);
          });
        },
        words, emit);
  }

 private:
  Pattern pattern_;
  Behavior behavior_;
  bool invert_;
};

// Each character of a class is a match.
class CharStep : public CuttingStep {
 public:
  CharStep(bool (*is_match)(char32_t), Behavior behavior)
      : is_match_(is_match), behavior_(behavior) {}
  Status Cut(const Words& words, const Emit& emit) const override {
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
        words, emit);
  }

 private:
  bool (*is_match_)(char32_t);
  Behavior behavior_;
};

class RustWordsStep : public CuttingStep {
 public:
  Status Cut(const Words& words, const Emit& emit) const override {
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
        words, emit);
  }
};

class PrefixSpaceStep : public PreTokenizer {
 public:
  Status Apply(Words* words) const override {
    RewriteWords(
        [](std::string_view word, TextStart, std::string* out) {
          if (!word.starts_with(' ')) *out += ' ';
          *out += word;
        },
        words);
    return {};
  }
};

class ByteLevelStep : public PreTokenizer {
 public:
  Status Apply(Words* words) const override {
    RewriteWords(
        [](std::string_view word, TextStart, std::string* out) {
          for (char c : word) *out += ByteLevelChar(static_cast<uint8_t>(c));
        },
        words);
    return {};
  }
};

class MetaspaceStep : public PreTokenizer {
 public:
  enum class Prepend { kNever, kFirst, kAlways };
  MetaspaceStep(std::string replacement, Prepend prepend)
      : replacement_(std::move(replacement)), prepend_(prepend) {}

  Status Apply(Words* words) const override {
    RewriteWords(
        [this](std::string_view word, TextStart start, std::string* out) {
          const bool prepend = (prepend_ == Prepend::kAlways && start != TextStart::kContinues) ||
                               (prepend_ == Prepend::kFirst && start == TextStart::kBegin);
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
    return {};
  }

 private:
  std::string replacement_;
  Prepend prepend_;
};

// Each replaced space begins a word.
class MetaspaceCut : public CuttingStep {
 public:
  explicit MetaspaceCut(std::string replacement) : replacement_(std::move(replacement)) {}
  Status Cut(const Words& words, const Emit& emit) const override {
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
        words, emit);
  }

 private:
  std::string replacement_;
};

// All Sequences, however nested, become one list: then this is the only place where text can grow
// step by step, and a hostile file cannot make it explode.
//
// A text of a million words is never held as a million ranges: the words that the first cutting
// step finds go through the rest in batches. (A range is 24 bytes, a word often one.)
class SequenceStep : public PreTokenizer {
 public:
  explicit SequenceStep(std::vector<Step> steps) : steps_(std::move(steps)) {}

  Status Apply(Words* words) const override {
    Growth growth(steps_.size(), words->text.size());
    for (size_t i = 0; i < steps_.size(); ++i) KV_TRY(ApplyOne(i, growth, words));
    return {};
  }

  Status ApplyInBatches(Words words, const BatchSink& sink) const override {
    Growth growth(steps_.size(), words.text.size());
    return BatchesFrom(0, growth, std::move(words), sink);
  }

 private:
  static constexpr size_t kBatchWords = 4096;

  // What each step has made of the whole text so far, over all its batches.
  struct Growth {
    Growth(size_t num_steps, size_t text_bytes)
        : max_bytes(kMaxGrowth * text_bytes + (64 << 10)), bytes_after(num_steps) {}
    const size_t max_bytes;
    std::vector<size_t> bytes_after;  // [step]
  };

  Status ApplyOne(size_t i, Growth& growth, Words* words) const {
    KV_TRY(steps_[i]->Apply(words));
    growth.bytes_after[i] += words->text.size();
    if (growth.bytes_after[i] <= growth.max_bytes) return {};
    return Fail(Code::kInvalidArgument,
                "tokenizer: the pre-tokenizer makes the text more than {} times longer",
                kMaxGrowth);
  }

  // Runs steps [first, ...). Each cutting step hands on what it found some thousand words at a
  // time.
  Status BatchesFrom(size_t first, Growth& growth, Words words, const BatchSink& sink) const {
    const CuttingStep* cut = nullptr;
    for (; first < steps_.size(); ++first) {
      cut = dynamic_cast<const CuttingStep*>(steps_[first].get());
      if (cut != nullptr) break;
      KV_TRY(ApplyOne(first, growth, &words));
    }
    if (cut == nullptr) return sink(words);
    Status status;
    std::vector<Words::Range> ranges;
    const auto flush = [&] {
      if (!status || ranges.empty()) return;
      const size_t begin = ranges.front().begin;
      Words batch{words.text.substr(begin, ranges.back().end - begin), {}};
      for (Words::Range& range : ranges) range.begin -= begin, range.end -= begin;
      batch.ranges.swap(ranges);
      status = BatchesFrom(first + 1, growth, std::move(batch), sink);
    };
    KV_TRY(cut->Cut(words, [&](const Words::Range& range) {
      ranges.push_back(range);
      if (ranges.size() == kBatchWords) flush();
      if (!status) ranges.clear();  // the rest is of no use
    }));
    flush();
    return status;
  }

  std::vector<Step> steps_;
};

Status ParseByteLevel(const nlohmann::json& value, std::vector<Step>* steps) {
  KV_ASSIGN(const bool add_prefix_space, BoolField(value, "add_prefix_space", true));
  KV_ASSIGN(const bool use_regex, BoolField(value, "use_regex", true));
  if (add_prefix_space) steps->push_back(std::make_unique<PrefixSpaceStep>());
  if (use_regex) {
    KV_ASSIGN(Regex regex, Regex::Compile(R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+)"
                                          R"(| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"));
    steps->push_back(
        std::make_unique<SplitStep>(Pattern(std::move(regex)), Behavior::kIsolated, false));
  }
  steps->push_back(std::make_unique<ByteLevelStep>());
  return {};
}

Status ParseMetaspace(const nlohmann::json& value, std::vector<Step>* steps) {
  KV_ASSIGN(MetaspaceFields fields, ReadMetaspace(value));
  KV_ASSIGN(const bool split, BoolField(value, "split", true));
  using Prepend = MetaspaceStep::Prepend;
  Prepend prepend = Prepend::kAlways;
  if (fields.scheme == "first") {
    prepend = Prepend::kFirst;
  } else if (fields.scheme == "never") {
    prepend = Prepend::kNever;
  } else if (fields.scheme != "always") {
    return Fail(Code::kUnsupported, "tokenizer.json: prepend_scheme \"{}\" is not supported",
                fields.scheme);
  }
  steps->push_back(std::make_unique<MetaspaceStep>(fields.replacement, prepend));
  if (split) steps->push_back(std::make_unique<MetaspaceCut>(std::move(fields.replacement)));
  return {};
}

Result<Step> ParseStep(const nlohmann::json& value, std::string_view type) {
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
  return Fail(Code::kUnsupported, "tokenizer.json: pre-tokenizer \"{}\" is not supported", type);
}

// Adds the steps of one pre-tokenizer that is not a Sequence.
Status AddSteps(const nlohmann::json& value, std::vector<Step>* steps) {
  KV_ASSIGN(const std::string type, StringField(value, "type", ""));
  if (type == "ByteLevel") return ParseByteLevel(value, steps);
  if (type == "Metaspace") return ParseMetaspace(value, steps);
  if (type == "BertPreTokenizer") {
    steps->push_back(std::make_unique<CharStep>(&IsWhitespace, Behavior::kRemoved));
    steps->push_back(std::make_unique<CharStep>(&IsPunctuation, Behavior::kIsolated));
    return {};
  }
  KV_ASSIGN(steps->emplace_back(), ParseStep(value, type));
  return {};
}

}  // namespace

Result<std::unique_ptr<PreTokenizer>> PreTokenizer::Parse(const nlohmann::json& value) {
  std::vector<Step> steps;
  if (!value.is_null()) {
    KV_TRY(ForEachStep(value, "pre-tokenizer", "pretokenizers",
                       [&](const nlohmann::json& one) { return AddSteps(one, &steps); }));
  }
  if (steps.size() > kMaxSteps) {  // each cutting step is a call within the one before
    return Fail(Code::kUnsupported, "tokenizer.json: {} pre-tokenizers; at most {} are supported",
                steps.size(), kMaxSteps);
  }
  return std::make_unique<SequenceStep>(std::move(steps));
}

}  // namespace kvasir
