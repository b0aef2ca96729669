#include "grammar/regular_expression.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/result.h"
#include "base/utf8.h"
#include "grammar/text_reader.h"

namespace kvasir {
namespace {

constexpr uint32_t kMaxGroups = 100;    // inside each other
constexpr size_t kMaxRanges = 100'000;  // of a class
constexpr CharRange kSpaces[] = {{'\t', '\r'}, {' ', ' '}};
constexpr CharRange kWordChars[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};

using Ranges = std::vector<CharRange>;

// Returns what is not in `ranges`, up to `last`.
Ranges Others(Ranges ranges, char32_t last) {
  Ranges others;
  for (CharRange range : Complement(std::move(ranges))) {
    if (range.first > last) break;
    others.push_back({range.first, std::min(range.last, last)});
  }
  return others;
}

class PatternParser : TextReader {
 public:
  PatternParser(std::string_view pattern, const WriteChars& write, GrammarSource* source)
      : TextReader(pattern), write_(write), source_(source) {}

  Result<ExpressionId> Parse(Extent extent);

 private:
  template <typename... Args>
  tl::unexpected<Error> Wrong(fmt::format_string<Args...> format, Args&&... args) const {
    return Fail(Code::kInvalidArgument, "at byte {} of the pattern: {}", pos_,
                fmt::format(format, std::forward<Args>(args)...));
  }

  Result<ExpressionId> ParseChoice(uint32_t nesting);
  Result<ExpressionId> ParseSequence(uint32_t nesting);
  Result<ExpressionId> ParsePart(uint32_t nesting);
  Result<ExpressionId> ParseGroup(uint32_t nesting);
  Result<ExpressionId> ParseRepeats(ExpressionId of);
  Result<bool> ParseCounts(uint32_t* least, std::optional<uint32_t>* most);
  Result<Ranges> ParseClass();
  Result<Ranges> ParseEscape();  // after the backslash
  Result<char32_t> ParseCode(size_t digits);

  const WriteChars& write_;
  GrammarSource* const source_;
};

Result<ExpressionId> PatternParser::Parse(Extent extent) {
  std::vector<ExpressionId> choices;
  const auto anything = [&] {
    return source_->Repeat(write_(source_, {{0, kLastChar}}), 0, std::nullopt);
  };
  do {
    const bool from_start = Take("^") || extent == Extent::kWhole;
    KV_ASSIGN(const ExpressionId sequence, ParseSequence(0));
    const bool to_end = Take("$") || extent == Extent::kWhole;
    std::vector<ExpressionId> parts;
    if (!from_start) parts.push_back(anything());
    parts.push_back(sequence);
    if (!to_end) parts.push_back(anything());
    choices.push_back(source_->Sequence(parts));
    KV_TRY(source_->CheckSize());
  } while (Take("|"));
  if (At(')')) return Wrong("')' has no '('");
  if (!AtEnd()) return Wrong("'$' is supported at the end of the pattern only");
  return source_->Choice(choices);
}

Result<ExpressionId> PatternParser::ParseChoice(uint32_t nesting) {
  if (nesting > kMaxGroups) return Wrong("groups nest more than {} deep", kMaxGroups);
  std::vector<ExpressionId> choices;
  do {
    KV_ASSIGN(const ExpressionId sequence, ParseSequence(nesting));
    choices.push_back(sequence);
    KV_TRY(source_->CheckSize());
  } while (Take("|"));
  return source_->Choice(choices);
}

Result<ExpressionId> PatternParser::ParseSequence(uint32_t nesting) {
  std::vector<ExpressionId> parts;
  while (!AtEnd() && !At('|') && !At(')') && !At('$')) {
    KV_ASSIGN(const ExpressionId part, ParsePart(nesting));
    KV_ASSIGN(const ExpressionId repeated, ParseRepeats(part));
    parts.push_back(repeated);
    KV_TRY(source_->CheckSize());
  }
  return source_->Sequence(parts);
}

Result<ExpressionId> PatternParser::ParsePart(uint32_t nesting) {
  if (Take("(")) return ParseGroup(nesting);
  if (At('^')) return Wrong("'^' is supported at the beginning of the pattern only");
  if (At('*') || At('+') || At('?')) return Wrong("'{}' has nothing to repeat", text_[pos_]);
  if (Take(".")) {
    return write_(source_, Complement({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}));
  }
  Ranges ranges;
  if (Take("[")) {
    KV_ASSIGN(ranges, ParseClass());
  } else if (Take("\\")) {
    KV_ASSIGN(ranges, ParseEscape());
  } else {
    const char32_t c = NextChar(text_, &pos_);
    ranges = {{c, c}};
  }
  return write_(source_, std::move(ranges));
}

Result<ExpressionId> PatternParser::ParseGroup(uint32_t nesting) {
  if (Take("?") && !Take(":")) {
    const bool is_named = (Take("<") || Take("P<")) && !At('=') && !At('!');
    const size_t end = text_.find('>', pos_);
    if (!is_named || end == std::string_view::npos) {
      return Wrong("look-around and flags are not supported");
    }
    pos_ = end + 1;
  }
  KV_ASSIGN(const ExpressionId choice, ParseChoice(nesting + 1));
  if (At('$')) return Wrong("'$' is supported at the end of the pattern only");
  if (!Take(")")) return Wrong("')' is missing");
  return choice;
}

Result<ExpressionId> PatternParser::ParseRepeats(ExpressionId of) {
  uint32_t least = 0;
  std::optional<uint32_t> most;
  if (Take("*")) {
  } else if (Take("+")) {
    least = 1;
  } else if (Take("?")) {
    most = 1;
  } else if (At('{')) {
    KV_ASSIGN(const bool is_count, ParseCounts(&least, &most));
    if (!is_count) return of;  // the next part reads it as a character
  } else {
    return of;
  }
  if (Take("?")) {  // lazy
  } else if (At('+')) {
    return Wrong("possessive repetitions are not supported");
  }
  if (At('*') || At('?')) return Wrong("a repetition is repeated");
  return source_->Repeat(of, least, most);
}

// False where the text is not {m}, {m,} or {m,n}: then it is text.
Result<bool> PatternParser::ParseCounts(uint32_t* least, std::optional<uint32_t>* most) {
  const size_t begin = pos_++;
  bool is_valid = TakeDigits(10, text_.npos, least) > 0;
  *most = *least;
  if (Take(",")) {
    most->reset();
    if (!At('}')) is_valid = TakeDigits(10, text_.npos, &most->emplace()) > 0 && is_valid;
  }
  if (!is_valid || !Take("}")) {
    pos_ = begin;
    return false;
  }
  if (*least > kMaxGrammarNodes || most->value_or(0) > kMaxGrammarNodes) {
    return Wrong("a repetition is over {}", kMaxGrammarNodes);
  }
  if (*most && *least > **most) {
    return Wrong("a repetition has a minimum of {} above its maximum of {}", *least, **most);
  }
  return true;
}

Result<Ranges> PatternParser::ParseClass() {
  const bool is_negated = Take("^");
  Ranges ranges;
  for (bool is_first = true; is_first || !At(']'); is_first = false) {
    if (AtEnd()) return Wrong("']' is missing");
    if (At(']') && is_first) return Wrong("a class of characters is empty");
    const auto take = [&]() -> Result<Ranges> {
      if (AtEnd()) return Wrong("']' is missing");
      if (Take("\\")) return ParseEscape();
      const char32_t c = NextChar(text_, &pos_);
      return Ranges{{c, c}};
    };
    KV_ASSIGN(Ranges first, take());
    if (At('-') && text_.substr(pos_, 2) != "-]") {
      ++pos_;
      KV_ASSIGN(const Ranges last, take());
      const auto is_char = [](const Ranges& of) {
        return of.size() == 1 && of[0].first == of[0].last;
      };
      if (!is_char(first) || !is_char(last) || last[0].first < first[0].first) {
        return Wrong("a range of characters needs a first and a later last character");
      }
      first[0].last = last[0].last;
    }
    ranges.insert(ranges.end(), first.begin(), first.end());
    if (ranges.size() > kMaxRanges) {
      return Wrong("a class has more than {} ranges of characters", kMaxRanges);
    }
  }
  ++pos_;
  return is_negated ? Complement(std::move(ranges)) : ranges;
}

Result<Ranges> PatternParser::ParseEscape() {
  if (AtEnd()) return Wrong("an escape has no character");
  const Ranges words(std::begin(kWordChars), std::end(kWordChars));
  const Ranges spaces(std::begin(kSpaces), std::end(kSpaces));
  const auto one = [](char32_t c) { return Ranges{{c, c}}; };
  const char32_t c = NextChar(text_, &pos_);
  switch (c) {
    case 'd':
      return Ranges{{'0', '9'}};
    case 'D':
      return Others({{'0', '9'}}, 0x7F);
    case 'w':
      return words;
    case 'W':
      return Others(words, 0x7F);
    case 's':
      return spaces;
    case 'S':
      return Others(spaces, 0x7F);
    case 't':
      return one('\t');
    case 'n':
      return one('\n');
    case 'r':
      return one('\r');
    case 'f':
      return one('\f');
    case 'v':
      return one('\v');
    case '0':
      return one('\0');
    case 'x':
    case 'u': {
      KV_ASSIGN(const char32_t code, ParseCode(c == 'x' ? 2 : 4));
      return one(code);
    }
    default:
      break;
  }
  const bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '1' && c <= '9');
  if (is_letter) return Wrong("'\\{}' is not supported", static_cast<char>(c));
  return one(c);
}

Result<char32_t> PatternParser::ParseCode(size_t digits) {
  const bool has_braces = digits == 4 && Take("{");
  uint32_t code = 0;
  const size_t taken = TakeDigits(16, has_braces ? 6 : digits, &code);
  const bool is_whole = has_braces ? taken > 0 && Take("}") : taken == digits;
  if (!is_whole || !IsCharCode(code)) {
    return Wrong("an escape names no character");
  }
  return static_cast<char32_t>(code);
}

}  // namespace

Result<ExpressionId> AddRegularExpression(std::string_view pattern, Extent extent,
                                          const WriteChars& write, GrammarSource* source) {
  if (pattern.size() > kMaxGrammarBytes) {
    return Fail(Code::kInvalidArgument, "the pattern has {} bytes (at most {})", pattern.size(),
                kMaxGrammarBytes);
  }
  if (const size_t wrong = FirstInvalidUtf8(pattern); wrong < pattern.size()) {
    return Fail(Code::kInvalidArgument, "byte {} of the pattern is not UTF-8", wrong);
  }
  KV_TRY(source->Spend(pattern.size()));
  return PatternParser(pattern, write, source).Parse(extent);
}

}  // namespace kvasir
