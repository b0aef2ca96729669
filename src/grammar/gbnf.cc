#include "grammar/gbnf.h"

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/ascii.h"
#include "base/result.h"
#include "base/utf8.h"
#include "grammar/text_reader.h"

namespace kvasir {
namespace {

constexpr uint32_t kMaxNesting = 200;  // of parentheses
constexpr uint32_t kMaxRepeated = 20;  // of a part: more say nothing more

bool IsNameChar(char c) { return IsAsciiAlnum(c) || c == '-' || c == '_'; }

// Reads a whole text. REQUIRES: it is UTF-8.
class GbnfParser : TextReader {
 public:
  GbnfParser(std::string_view text, GrammarSource* source) : TextReader(text), source_(source) {}

  Status Parse();
  std::optional<RuleId> root() const {
    const auto found = rules_.find("root");
    return found == rules_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  enum class Lines : uint8_t { kOne, kMany };  // whether a new line is white space

  template <typename... Args>
  tl::unexpected<Error> Wrong(fmt::format_string<Args...> format, Args&&... args) {
    return Fail(Code::kInvalidArgument, "{}: {}", Place(pos_),
                fmt::format(format, std::forward<Args>(args)...));
  }
  std::string Place(size_t pos);  // REQUIRES: pos is not before that of an earlier call
  void SkipSpace(Lines lines);
  std::string_view TakeName();
  RuleId RuleOf(std::string_view name);

  Status ParseRule();
  Result<ExpressionId> ParseChoice(uint32_t nesting);
  Result<ExpressionId> ParseSequence(uint32_t nesting);
  Result<std::optional<ExpressionId>> ParsePart(uint32_t nesting);
  Result<ExpressionId> ParseLiteral();
  Result<ExpressionId> ParseClass();
  Result<ExpressionId> ParseRepeat(ExpressionId of);
  Result<std::optional<uint32_t>> ParseCount();
  Result<char32_t> ParseChar();
  Result<char32_t> ParseCode(size_t digits);

  size_t counted_ = 0, line_ = 1, line_begin_ = 0;  // of the lines up to a byte
  GrammarSource* const source_;
  std::map<std::string, RuleId, std::less<>> rules_;
};

std::string GbnfParser::Place(size_t pos) {
  for (; counted_ < pos && counted_ < text_.size(); ++counted_) {
    if (text_[counted_] == '\n') ++line_, line_begin_ = counted_ + 1;
  }
  return fmt::format("line {}, column {}", line_, pos - line_begin_ + 1);
}

void GbnfParser::SkipSpace(Lines lines) {
  while (!AtEnd()) {
    const char c = text_[pos_];
    if (c == '#') {
      pos_ = std::min(text_.find('\n', pos_), text_.size());
    } else if (c == ' ' || c == '\t' || (lines == Lines::kMany && (c == '\n' || c == '\r'))) {
      ++pos_;
    } else {
      return;
    }
  }
}

std::string_view GbnfParser::TakeName() {
  const size_t begin = pos_;
  while (!AtEnd() && IsNameChar(text_[pos_])) ++pos_;
  return text_.substr(begin, pos_ - begin);
}

RuleId GbnfParser::RuleOf(std::string_view name) {
  const auto found = rules_.find(name);
  if (found != rules_.end()) return found->second;
  const RuleId id = source_->AddRule(std::string(name), Place(pos_ - name.size()));
  rules_.emplace(name, id);
  return id;
}

Status GbnfParser::Parse() {
  SkipSpace(Lines::kMany);
  while (!AtEnd()) {
    KV_TRY(ParseRule());
    SkipSpace(Lines::kMany);
  }
  return {};
}

Status GbnfParser::ParseRule() {
  const std::string_view name = TakeName();
  if (name.empty()) return Wrong("the name of a rule is missing");
  if (source_->rules().size() >= kMaxGrammarRules) {
    return Wrong("more than {} rules", kMaxGrammarRules);
  }
  const RuleId rule = RuleOf(name);
  if (source_->rule(rule).expression) return Wrong("rule '{}' is defined twice", name);
  SkipSpace(Lines::kMany);
  if (!Take("::=")) return Wrong("'::=' is missing after rule name '{}'", name);
  SkipSpace(Lines::kMany);
  KV_ASSIGN(const ExpressionId expression, ParseChoice(0));
  source_->Define(rule, expression);
  if (!AtEnd() && !At('\n') && !At('\r')) {
    return Wrong("unexpected '{}' in rule '{}'", text_[pos_], name);
  }
  return {};
}

Result<ExpressionId> GbnfParser::ParseChoice(uint32_t nesting) {
  if (nesting > kMaxNesting) return Wrong("parentheses nest more than {} deep", kMaxNesting);
  std::vector<ExpressionId> choices;
  while (true) {
    KV_ASSIGN(const ExpressionId sequence, ParseSequence(nesting));
    choices.push_back(sequence);
    KV_TRY(source_->CheckSize());
    if (!Take("|")) break;
    SkipSpace(Lines::kMany);
  }
  return source_->Choice(choices);
}

Result<ExpressionId> GbnfParser::ParseSequence(uint32_t nesting) {
  const Lines lines = nesting > 0 ? Lines::kMany : Lines::kOne;
  std::vector<ExpressionId> parts;
  while (true) {
    KV_ASSIGN(const std::optional<ExpressionId> part, ParsePart(nesting));
    if (!part) break;
    parts.push_back(*part);
    KV_TRY(source_->CheckSize());
    SkipSpace(lines);
    uint32_t repeated = 0;
    while (!AtEnd() && std::string_view("*+?{").find(text_[pos_]) != std::string_view::npos) {
      if (++repeated > kMaxRepeated) {
        return Wrong("more than {} repetitions of a part", kMaxRepeated);
      }
      KV_ASSIGN(parts.back(), ParseRepeat(parts.back()));
      SkipSpace(lines);
    }
  }
  return source_->Sequence(parts);
}

Result<std::optional<ExpressionId>> GbnfParser::ParsePart(uint32_t nesting) {
  if (At('"')) return ParseLiteral();
  if (At('[')) return ParseClass();
  if (Take(".")) return source_->Class({{0, kLastChar}});
  if (Take("(")) {
    SkipSpace(Lines::kMany);
    KV_ASSIGN(const ExpressionId choice, ParseChoice(nesting + 1));
    if (!Take(")")) return Wrong("')' is missing");
    return choice;
  }
  const std::string_view name = TakeName();
  if (!name.empty()) return source_->Call(RuleOf(name));
  if (At('<')) return Wrong("tokens in <> are not supported; write their text in quotes");
  return std::optional<ExpressionId>();
}

Result<ExpressionId> GbnfParser::ParseLiteral() {
  std::string bytes;
  for (++pos_; !At('"');) {
    if (AtEnd() || At('\n')) return Wrong("'\"' is missing at the end of a text");
    KV_ASSIGN(const char32_t c, ParseChar());
    AppendUtf8(c, &bytes);
  }
  ++pos_;
  return source_->Literal(bytes);
}

Result<ExpressionId> GbnfParser::ParseClass() {
  ++pos_;
  const bool is_negated = Take("^");
  std::vector<CharRange> ranges;
  while (!At(']')) {
    if (AtEnd() || At('\n')) return Wrong("']' is missing at the end of a class of characters");
    KV_ASSIGN(const char32_t first, ParseChar());
    char32_t last = first;
    if (At('-') && text_.substr(pos_, 2) != "-]") {
      ++pos_;
      if (AtEnd()) return Wrong("']' is missing at the end of a class of characters");
      KV_ASSIGN(last, ParseChar());
      if (last < first) return Wrong("a range of characters ends before it begins");
    }
    ranges.push_back({first, last});
  }
  ++pos_;
  return source_->Class(is_negated ? Complement(std::move(ranges)) : std::move(ranges));
}

Result<ExpressionId> GbnfParser::ParseRepeat(ExpressionId of) {
  if (Take("*")) return source_->Repeat(of, 0, std::nullopt);
  if (Take("+")) return source_->Repeat(of, 1, std::nullopt);
  if (Take("?")) return source_->Optional(of);
  ++pos_;  // {
  KV_ASSIGN(const std::optional<uint32_t> least, ParseCount());
  std::optional<uint32_t> most = least;
  const bool has_comma = Take(",");
  if (has_comma) {
    KV_ASSIGN(most, ParseCount());
  }
  if (!Take("}")) return Wrong("'}}' is missing at the end of a repetition");
  if (!least && !most) return Wrong("a repetition has no number");
  if (most && least.value_or(0) > *most) {
    return Wrong("a repetition has a minimum of {} above its maximum of {}", *least, *most);
  }
  return source_->Repeat(of, least.value_or(0), most);
}

Result<std::optional<uint32_t>> GbnfParser::ParseCount() {
  SkipSpace(Lines::kOne);
  const size_t begin = pos_;
  uint32_t count = 0;
  const bool has_digits = TakeDigits(10, text_.npos, &count) > 0;
  if (count > kMaxGrammarNodes) {
    pos_ = begin;  // where the error is
    return Wrong("a repetition is over {}", kMaxGrammarNodes);
  }
  SkipSpace(Lines::kOne);
  return has_digits ? std::optional(count) : std::nullopt;
}

Result<char32_t> GbnfParser::ParseChar() {
  if (!Take("\\")) return NextChar(text_, &pos_);
  if (AtEnd()) return Wrong("an escape has no character");
  const char c = text_[pos_++];
  switch (c) {
    case 'n':
      return U'\n';
    case 'r':
      return U'\r';
    case 't':
      return U'\t';
    case 'x':
      return ParseCode(2);
    case 'u':
      return ParseCode(4);
    case 'U':
      return ParseCode(8);
    case '\\':
    case '"':
    case '[':
    case ']':
    case '-':
    case '^':
      return static_cast<char32_t>(c);
    default:
      --pos_;
      return Wrong("unknown escape '\\{}'", c);
  }
}

Result<char32_t> GbnfParser::ParseCode(size_t digits) {
  const size_t begin = pos_;
  uint32_t code = 0;
  const bool is_whole = TakeDigits(16, digits, &code) == digits;
  if (is_whole && IsCharCode(code)) return static_cast<char32_t>(code);
  pos_ = begin;  // where the error is
  if (!is_whole) return Wrong("an escape needs {} hexadecimal digits", digits);
  return Wrong("U+{:04X} is not a character", code);
}

}  // namespace

Result<ExpressionId> AddGbnf(std::string_view text, GrammarSource* source) {
  if (text.size() > kMaxGrammarBytes) {
    return Fail(Code::kInvalidArgument, "the grammar has {} bytes (at most {})", text.size(),
                kMaxGrammarBytes);
  }
  if (const size_t wrong = FirstInvalidUtf8(text); wrong < text.size()) {
    return Fail(Code::kInvalidArgument, "byte {} is not UTF-8", wrong);
  }
  GbnfParser parser(text, source);
  KV_TRY(parser.Parse());
  if (!parser.root()) return Fail(Code::kInvalidArgument, "rule 'root' is not defined");
  return source->Call(*parser.root());
}

}  // namespace kvasir
