// From Oniguruma's Ruby syntax to PCRE2's. Each rule names the difference it removes; the sets were
// compared over all code points.
#include <algorithm>
#include <array>

#include "base/ascii.h"
#include "base/hex.h"
#include "base/result.h"
#include "text/regex.h"

namespace kvasir {
namespace {

// PCRE2's \s adds U+180E, its \w lacks marks and connectors, its \h is horizontal space.
constexpr std::string_view kSpaceSet = R"(\p{White_Space})";
constexpr std::string_view kWordSet =
    R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{b2}\x{b3}\x{b9}\x{bc}-\x{be})";
constexpr std::string_view kHexSet = "0-9a-fA-F";
constexpr std::string_view kReport = "(?C1)";  // a callout

constexpr std::array<std::string_view, 38> kCategories = {
    "L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",  "Nd", "Nl",
    "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S",  "Sm", "Sc", "Sk",
    "So", "Z",  "Zs", "Zl", "Zp", "C",  "Cc", "Cf", "Cs", "Co", "Cn", "Any"};
constexpr std::array<std::pair<std::string_view, std::string_view>, 14> kLongNames = {{
    {"Letter", "L"},
    {"Mark", "M"},
    {"Number", "N"},
    {"Punctuation", "P"},
    {"Punct", "P"},
    {"Symbol", "S"},
    {"Separator", "Z"},
    {"Other", "C"},
    {"Uppercase_Letter", "Lu"},
    {"Lowercase_Letter", "Ll"},
    {"Digit", "Nd"},
    {"Space", "White_Space"},
    {"White_Space", "White_Space"},
    {"Alphabetic", "Alphabetic"},
}};

class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {}

  Result<std::string> Run() {
    while (pos_ < in_.size()) KV_TRY(in_class_ ? ClassItem() : Item());
    return std::move(out_);
  }

 private:
  tl::unexpected<Error> Unsupported(std::string_view what) const {
    return Fail(Code::kUnsupported, "regular expression with {} at offset {} is not supported: {}",
                what, pos_, in_.substr(0, 200));
  }
  char Peek(size_t ahead = 0) const { return pos_ + ahead < in_.size() ? in_[pos_ + ahead] : '\0'; }
  bool StartsWith(std::string_view text) const { return in_.substr(pos_).starts_with(text); }
  void Copy(size_t count) {
    count = std::min(count, in_.size() - pos_);
    out_ += in_.substr(pos_, count);
    pos_ += count;
  }

  Status Item() {
    const char c = Peek();
    if (c == '\\') return Escape();
    if (c == '(' && Peek(1) == '?') return Group();
    if (c == '(' && Peek(1) == '*') return Unsupported("a verb (*");
    if (c == '{') return Interval();
    if (c == '[') {
      Copy(Peek(1) == '^' ? 2 : 1);
      if (Peek() == ']') return Unsupported("] first in a class");
      in_class_ = true;
      return {};
    }
    if (c == '*' || c == '+' || c == '?') return Quantifier(), Status();
    Copy(1);
    return {};
  }

  // Copies a quantifier with its mark for lazy or possessive. A search spends its time in
  // repetitions, so the search reports its place after each one (Regex::Finder counts the way).
  void Quantifier() {
    Copy(Peek(1) == '?' || Peek(1) == '+' ? 2 : 1);
    out_ += kReport;
  }

  Status ClassItem() {
    const char c = Peek();
    if (c == '\\') return Escape();
    if (c == '[') return Unsupported("a nested or POSIX class");
    if (StartsWith("&&")) return Unsupported("an intersection of classes");
    if (c == ']') in_class_ = false;
    Copy(1);
    return {};
  }

  void Set(std::string_view set, bool negated) {
    if (!in_class_) out_ += negated ? "[^" : "[";
    out_ += set;
    if (!in_class_) out_ += ']';
    pos_ += 2;
  }

  // Writes \b between \w and not \w, with Oniguruma's \w.
  void WordBoundary(bool negated) {
    const std::string word = "[" + std::string(kWordSet) + "]";
    const std::string left = "(?<=" + word + ")", no_left = "(?<!" + word + ")";
    const std::string right = "(?=" + word + ")", no_right = "(?!" + word + ")";
    out_ += negated ? "(?:" + left + right + "|" + no_left + no_right + ")"
                    : "(?:" + left + no_right + "|" + no_left + right + ")";
    pos_ += 2;
  }

  Status Escape() {
    const char c = Peek(1);
    const bool upper = LowerAscii(c) != c;
    if (c == 's' || (c == 'S' && !in_class_)) return Set(kSpaceSet, upper), Status();
    if (c == 'w' || (c == 'W' && !in_class_)) return Set(kWordSet, upper), Status();
    if (c == 'h' || (c == 'H' && !in_class_)) return Set(kHexSet, upper), Status();
    if (c == 'p' || c == 'P') return Property();
    if (c == 'S') {
      out_ += R"(\P{White_Space})";
      pos_ += 2;
      return {};
    }
    if (c == 'v') {  // the vertical tab; PCRE2: all vertical space
      out_ += R"(\x0B)";
      pos_ += 2;
      return {};
    }
    if (c == 'u') return FourDigits();
    if (!in_class_ && (c == 'b' || c == 'B')) return WordBoundary(upper), Status();
    if (c == 'b') {
      out_ += R"(\x08)";
      pos_ += 2;
      return {};
    }
    if (IsAsciiLetter(c)) {
      const std::string_view same = in_class_ ? "dDnrtfaex" : "dDnrtfaexAzZGK";
      if (same.find(c) == std::string_view::npos) {
        return Unsupported(fmt::format("the escape \\{}", c));
      }
    } else if (IsAsciiDigit(c) && c != '0') {
      return Unsupported("a back reference");
    } else if (c == '\0' || static_cast<unsigned char>(c) >= 0x80) {
      out_ += c == '\0' ? R"(\\)" : "";  // an escaped non-ASCII character is itself
      pos_ += 1;
      return {};
    }
    Copy(2);
    return {};
  }

  Status FourDigits() {
    const std::string_view digits = in_.substr(std::min(in_.size(), pos_ + 2), 4);
    if (digits.size() < 4 || !std::all_of(digits.begin(), digits.end(), [](char d) {
          return HexDigit(d, HexCase::kAny).has_value();
        })) {
      return Unsupported("a broken \\u");
    }
    out_ += fmt::format("\\x{{{}}}", digits);
    pos_ += 6;
    return {};
  }

  // Writes a property. PCRE2 reads a script name as Script_Extensions, Oniguruma as Script.
  Status Property() {
    const size_t end = in_.find('}', pos_);
    if (Peek(2) != '{' || end == std::string_view::npos)
      return Unsupported("a property without {}");
    std::string_view name = in_.substr(pos_ + 3, end - pos_ - 3);
    bool negated = Peek(1) == 'P';
    if (name.starts_with('^')) {
      negated = !negated;
      name.remove_prefix(1);
    }
    if (name.empty() || !std::all_of(name.begin(), name.end(),
                                     [](char c) { return IsAsciiAlnum(c) || c == '_'; })) {
      return Unsupported("a property of an unknown kind");
    }
    std::string pcre = "sc:" + std::string(name);
    if (std::find(kCategories.begin(), kCategories.end(), name) != kCategories.end()) pcre = name;
    for (const auto& [from, to] : kLongNames) {
      if (name == from) pcre = to;
    }
    out_ += fmt::format("\\{}{{{}}}", negated ? 'P' : 'p', pcre);
    pos_ = end + 1;
    return {};
  }

  Status Group() {
    for (std::string_view same : {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!"}) {
      if (StartsWith(same)) return Copy(same.size()), Status();
    }
    size_t end = pos_ + 2;
    std::string options = "(?";
    while (end < in_.size() && (in_[end] == 'i' || in_[end] == 'm' || in_[end] == '-')) {
      options += in_[end] == 'm' ? 's' : in_[end];  // Ruby's m lets . match a line feed
      ++end;
    }
    const bool scoped = end < in_.size() && in_[end] == ':';
    // (?i) inside a pattern also swallows the alternatives that follow it: only one at the start of
    // the pattern means the same in both.
    const bool leading = end < in_.size() && in_[end] == ')' && pos_ == 0;
    if (end == pos_ + 2 || (!scoped && !leading)) return Unsupported("a group of an unknown kind");
    out_ += options + in_[end];
    pos_ = end + 1;
    return {};
  }

  // Writes {n,m}: here {,m} counts from 0, {n,m}+ is not possessive and {n}? is an option.
  Status Interval() {
    size_t end = pos_ + 1;
    while (end < in_.size() && IsAsciiDigit(in_[end])) ++end;
    const bool has_low = end > pos_ + 1;
    const bool has_comma = end < in_.size() && in_[end] == ',';
    const size_t high = has_comma ? end + 1 : end;
    end = high;
    while (end < in_.size() && IsAsciiDigit(in_[end])) ++end;
    const bool has_high = end > high;
    if (end == in_.size() || in_[end] != '}' || (!has_low && !(has_comma && has_high))) {
      out_ += "\\{";  // no interval: a brace
      ++pos_;
      return {};
    }
    const char next = end + 1 < in_.size() ? in_[end + 1] : '\0';
    if (next == '+') return Unsupported("a + after an interval");
    if (next == '?' && !has_comma) return Unsupported("a ? after an exact interval");
    out_ += has_low ? "{" : "{0";
    ++pos_;
    Copy(end - pos_ + 1);
    if (next == '?') Copy(1);
    out_ += kReport;
    return {};
  }

  std::string_view in_;
  size_t pos_ = 0;
  bool in_class_ = false;
  std::string out_;
};

}  // namespace

Result<std::string> TranslateOniguruma(std::string_view pattern) {
  return Translator(pattern).Run();
}

}  // namespace kvasir
