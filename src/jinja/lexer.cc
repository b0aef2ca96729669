#include "jinja/lexer.h"

#include <algorithm>

#include "base/ascii.h"
#include "base/hex.h"
#include "base/result.h"
#include "base/utf8.h"
#include "jinja/text.h"

namespace kvasir::jinja {
namespace {

bool IsWordByte(char c) {
  return IsAsciiAlnum(c) || c == '_' || static_cast<unsigned char>(c) >= 0x80;
}
bool IsBlank(char c) { return c == ' ' || (c >= 9 && c <= 13); }

// Reads the source once. After a failure error_ is set and reading stops.
class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  Result<std::vector<Token>> Run() {
    while (at_ < source_.size() && !failed_) LexData();
    if (failed_) return tl::unexpected(error_);
    tokens_.push_back({Token::Kind::kEnd, "", source_.size()});
    return std::move(tokens_);
  }

 private:
  void Fail(size_t offset, std::string_view what) {
    if (failed_) return;
    failed_ = true;
    error_ = {Code::kInvalidArgument,
              fmt::format("chat template: {}, {}", what, Position(source_, offset))};
  }

  bool StartsWith(std::string_view prefix) const { return source_.substr(at_).starts_with(prefix); }

  void SkipBlanks() {
    while (at_ < source_.size() && IsBlank(source_[at_])) ++at_;
  }

  // Returns the offset of the next "{{", "{%" or "{#"; size() if none.
  size_t FindTag(size_t from) const {
    for (size_t i = from; i + 1 < source_.size(); ++i) {
      if (source_[i] == '{' && std::string_view("{%#").find(source_[i + 1]) != std::string::npos) {
        return i;
      }
    }
    return source_.size();
  }

  // Adds text [begin, end) before a tag; the tag's sign (0, '-' or '+') and kind decide what is
  // trimmed.
  void PushData(size_t begin, size_t end, char sign, bool is_variable) {
    std::string_view text = source_.substr(begin, end - begin);
    if (sign == '-') {
      size_t keep = text.size();
      while (keep > 0 && IsSpaceBefore(text, &keep)) {
      }
      text = text.substr(0, keep);
    } else if (sign != '+' && !is_variable && end < source_.size()) {
      const size_t newline = text.rfind('\n');
      const size_t line = newline == std::string_view::npos ? 0 : newline + 1;
      const bool blank = std::all_of(text.begin() + line, text.end(), IsBlank);
      if (blank && (line > 0 || line_starting_)) text = text.substr(0, line);
    }
    if (!text.empty()) tokens_.push_back({Token::Kind::kData, std::string(text), begin});
  }

  // Moves *keep before a Unicode space that ends there, like str.rstrip().
  static bool IsSpaceBefore(std::string_view text, size_t* keep) {
    const size_t start = StartOfCharBefore(text, *keep);
    if (!IsSpace(CharAt(text, start))) return false;
    *keep = start;
    return true;
  }

  char TakeSign() {
    if (at_ < source_.size() && (source_[at_] == '-' || source_[at_] == '+')) return source_[at_++];
    return 0;
  }

  // Removes what follows the end of a tag: all white space after "-"; without a sign, one newline
  // after a block or comment.
  void AfterTag(char sign, bool is_variable) {
    if (sign == '-') {
      SkipSpaces();
    } else if (sign == 0 && !is_variable && at_ < source_.size() && source_[at_] == '\n') {
      ++at_;
    }
    line_starting_ = at_ > 0 && source_[at_ - 1] == '\n';
  }

  void SkipSpaces() {
    while (at_ < source_.size() && IsSpace(CharAt(source_, at_))) at_ += CharSize(source_, at_);
  }

  void LexData() {
    const size_t begin = at_;
    const size_t tag = FindTag(at_);
    if (tag == source_.size()) {
      PushData(begin, tag, 0, true);
      at_ = tag;
      return;
    }
    const char kind = source_[tag + 1];
    at_ = tag + 2;
    const char sign = TakeSign();
    PushData(begin, tag, sign, kind == '{');
    line_starting_ = false;
    if (kind == '#') return LexComment(tag);
    if (kind == '%' && LexRaw(tag)) return;
    const bool variable = kind == '{';
    tokens_.push_back({variable ? Token::Kind::kVariableBegin : Token::Kind::kBlockBegin, "", tag});
    LexExpression(tag, variable);
  }

  void LexComment(size_t tag) {
    const size_t end = source_.find("#}", at_);
    if (end == std::string_view::npos) return Fail(tag, "comment without its end");
    const char before = end > at_ ? source_[end - 1] : '\0';
    at_ = end + 2;
    AfterTag(before == '-' || before == '+' ? before : 0, false);
  }

  // Reads a whole raw block if its name comes next.
  bool LexRaw(size_t tag) {
    const size_t start = at_;
    SkipSpaces();
    if (!StartsWith("raw")) return at_ = start, false;
    at_ += 3;
    SkipSpaces();
    const bool trims = StartsWith("-%}");
    if (!trims && !StartsWith("%}")) return at_ = start, false;
    at_ += trims ? 3 : 2;
    if (trims) SkipSpaces();
    line_starting_ = source_[at_ - 1] == '\n';
    const size_t begin = at_;
    for (size_t open = source_.find("{%", at_); open != std::string_view::npos;
         open = source_.find("{%", open + 1)) {
      at_ = open + 2;
      const char sign = TakeSign();
      SkipSpaces();
      if (!StartsWith("endraw")) continue;
      at_ += 6;
      SkipSpaces();
      const char end_sign = TakeSign();
      if (!StartsWith("%}")) continue;
      at_ += 2;
      PushData(begin, open, sign, false);
      AfterTag(end_sign, false);
      return true;
    }
    Fail(tag, "raw block without {% endraw %}");
    return true;
  }

  // Reads tokens up to the end of the tag. Inside brackets "}}" and "%}" are operators.
  void LexExpression(size_t tag, bool variable) {
    const std::string_view end = variable ? "}}" : "%}";
    while (!failed_) {
      SkipSpaces();
      if (at_ >= source_.size()) return Fail(tag, "tag without its end");
      if (brackets_.empty() && AtTagEnd(end, variable)) return;
      LexToken();
    }
  }

  bool AtTagEnd(std::string_view end, bool variable) {
    const char sign = source_[at_] == '-' || (source_[at_] == '+' && !variable) ? source_[at_] : 0;
    if (!source_.substr(at_ + (sign ? 1 : 0)).starts_with(end)) return false;
    tokens_.push_back({variable ? Token::Kind::kVariableEnd : Token::Kind::kBlockEnd, "", at_});
    at_ += sign ? 3 : 2;
    AfterTag(sign, variable);
    return true;
  }

  void LexToken() {
    const char c = source_[at_];
    if (IsAsciiDigit(c)) return LexNumber();
    if (IsWordByte(c)) return LexName();
    if (c == '\'' || c == '"') return LexString();
    LexOperator();
  }

  void LexName() {
    const size_t begin = at_;
    while (at_ < source_.size() && IsWordByte(source_[at_])) ++at_;
    tokens_.push_back({Token::Kind::kName, std::string(source_.substr(begin, at_ - begin)), begin});
  }

  void TakeDigits() {
    while (at_ < source_.size() && (IsAsciiDigit(source_[at_]) || source_[at_] == '_')) ++at_;
  }

  bool TakeExponent() {
    size_t i = at_ + 1;
    if (i < source_.size() && (source_[i] == '+' || source_[i] == '-')) ++i;
    if (i >= source_.size() || !IsAsciiDigit(source_[i])) return false;
    at_ = i;
    TakeDigits();
    return true;
  }

  void LexNumber() {
    const size_t begin = at_;
    const bool after_dot = begin > 0 && source_[begin - 1] == '.';
    bool is_float = false;
    if (source_[at_] == '0' && at_ + 2 < source_.size() &&
        std::string_view("xXoObB").find(source_[at_ + 1]) != std::string::npos) {
      at_ += 2;
      while (at_ < source_.size() &&
             (HexDigit(source_[at_], HexCase::kAny) || source_[at_] == '_')) {
        ++at_;
      }
    } else {
      TakeDigits();
      if (!after_dot && at_ + 1 < source_.size() && source_[at_] == '.' &&
          IsAsciiDigit(source_[at_ + 1])) {
        ++at_;
        TakeDigits();
        is_float = true;
      }
      if (!after_dot && at_ < source_.size() && (source_[at_] == 'e' || source_[at_] == 'E')) {
        is_float |= TakeExponent();
      }
    }
    std::string text(source_.substr(begin, at_ - begin));
    std::erase(text, '_');
    tokens_.push_back(
        {is_float ? Token::Kind::kFloat : Token::Kind::kInteger, std::move(text), begin});
  }

  void LexOperator() {
    static constexpr std::string_view kTwo[] = {"//", "**", "==", "!=", ">=", "<="};
    const size_t begin = at_;
    const std::string_view rest = source_.substr(at_);
    const bool two = std::any_of(std::begin(kTwo), std::end(kTwo),
                                 [&](std::string_view op) { return rest.starts_with(op); });
    const char c = source_[at_];
    if (!two && std::string_view("+-/*%~[](){}<>=.:|,;").find(c) == std::string::npos) {
      return Fail(at_, fmt::format("unexpected character '{}'", c));
    }
    if (!two && !Balance(c)) return;
    at_ += two ? 2 : 1;
    tokens_.push_back(
        {Token::Kind::kOperator, std::string(source_.substr(begin, two ? 2 : 1)), begin});
  }

  bool Balance(char c) {
    if (c == '(' || c == '[' || c == '{') brackets_.push_back(c);
    if (c != ')' && c != ']' && c != '}') return true;
    const char open = c == ')' ? '(' : c == ']' ? '[' : '{';
    if (brackets_.empty() || brackets_.back() != open) {
      Fail(at_, fmt::format("unexpected '{}'", c));
      return false;
    }
    brackets_.pop_back();
    return true;
  }

  void LexString() {
    const size_t begin = at_;
    const char quote = source_[at_++];
    std::string value;
    while (at_ < source_.size() && source_[at_] != quote) {
      if (source_[at_] == '\\') {
        LexEscape(value);
      } else {
        value += source_[at_++];
      }
      if (failed_) return;
    }
    if (at_ >= source_.size()) return Fail(begin, "string without its closing quote");
    ++at_;
    tokens_.push_back({Token::Kind::kString, std::move(value), begin});
  }

  // Reads an escape of a Python string; unknown escapes do not change.
  void LexEscape(std::string& value) {
    const size_t begin = at_++;
    if (at_ >= source_.size()) return;
    const char c = source_[at_++];
    static constexpr std::string_view kFrom = "ntr\\'\"abfv", kTo = "\n\t\r\\'\"\a\b\f\v";
    if (const size_t i = kFrom.find(c); i != std::string::npos) {
      value += kTo[i];
    } else if (c == 'x' || c == 'u' || c == 'U') {
      LexCodePoint(begin, c == 'x' ? 2 : c == 'u' ? 4 : 8, value);
    } else if (c >= '0' && c <= '7') {
      uint32_t code = c - '0';
      for (int i = 0; i < 2 && at_ < source_.size() && source_[at_] >= '0' && source_[at_] <= '7';
           ++i) {
        code = code * 8 + (source_[at_++] - '0');
      }
      AppendUtf8(code, &value);
    } else if (c != '\n') {
      value += '\\';
      value += c;
    }
  }

  void LexCodePoint(size_t begin, size_t digits, std::string& value) {
    uint32_t code = 0;
    for (size_t i = 0; i < digits; ++i, ++at_) {
      const auto digit =
          at_ < source_.size() ? HexDigit(source_[at_], HexCase::kAny) : std::nullopt;
      if (!digit) return Fail(begin, "escape with too few digits");
      code = code * 16 + *digit;
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
      return Fail(begin, "escape that is not a character");
    }
    AppendUtf8(code, &value);
  }

  std::string_view source_;
  size_t at_ = 0;
  bool line_starting_ = true;  // the following text begins a line
  std::vector<char> brackets_;
  std::vector<Token> tokens_;
  bool failed_ = false;
  Error error_;
};

}  // namespace

size_t LineOf(std::string_view source, size_t offset) {
  return 1 + std::count(source.begin(), source.begin() + std::min(offset, source.size()), '\n');
}

std::string Position(std::string_view source, size_t offset) {
  offset = std::min(offset, source.size());
  const size_t newline = offset == 0 ? std::string_view::npos : source.rfind('\n', offset - 1);
  const size_t line = newline == std::string_view::npos ? 0 : newline + 1;
  return fmt::format("line {}, column {}", LineOf(source, offset),
                     CharCount(source.substr(line, offset - line)) + 1);
}

std::string NormalizeNewlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

Result<std::vector<Token>> Tokenize(std::string_view source) { return Lexer(source).Run(); }

}  // namespace kvasir::jinja
