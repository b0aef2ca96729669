// GrammarSource: rules of expressions, from which a Grammar is compiled.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/status.h"

namespace kvasir {

// UTF-8 never has these bytes: in a token's text, they stand for special tokens. A mark is kMark
// and one more byte.
inline constexpr char kHiddenToken = '\xFE', kMark = '\xFF';

enum class ExpressionId : uint32_t {};
enum class RuleId : uint32_t {};

// Characters [first, last], both included.
struct CharRange {
  char32_t first, last;
};
inline constexpr char32_t kLastChar = 0x10FFFF;
// Tells whether a number is the code of a character: surrogates are not.
constexpr bool IsCharCode(uint32_t code) {
  return code <= kLastChar && !(code >= 0xD800 && code <= 0xDFFF);
}

// Returns all characters that are not in `ranges`. O(n log n).
std::vector<CharRange> Complement(std::vector<CharRange> ranges);

// What the parsers of GBNF, regular expressions and JSON Schema make. An expression may be used in
// several places. What it keeps, and the work of making it, are limited: once it is full, it keeps
// nothing more, and its ids stand for anything. Loops that add end soon after that, with CheckSize.
// One thread at a time.
class GrammarSource {
 public:
  // More parts make more nodes than there may be, unless most are empty texts. (The memory for 2^19
  // is there then.)
  static constexpr size_t kMaxExpressions = 500'000, kMaxRules = 50'000;
  static constexpr size_t kMaxKeptBytes = 24 << 20;
  // Bytes, values and schemas that are looked at to make it, more than once or not.
  static constexpr uint64_t kMaxSteps = 2'000'000;

  enum class Kind : uint8_t {
    kLiteral,
    kClass,
    kSequence,
    kChoice,
    kRepeat,
    kCall,
    kList,
    kUntil,
    kWithout
  };
  struct Expression {
    Kind kind;
    uint32_t begin = 0, end = 0;     // its bytes, ranges or children
    uint32_t min = 0;                // of kRepeat
    std::optional<uint32_t> max;     // of kRepeat; absent: without limit
    RuleId rule{};                   // of kCall
    std::optional<ExpressionId> of;  // of kRepeat: what repeats; of kList: the separator
  };
  struct ListItem {
    ExpressionId expression;
    bool is_optional;
  };
  struct Rule {
    std::string name;
    std::optional<ExpressionId> expression;  // absent: not defined
    std::string place;                       // where it is first mentioned, for errors
  };

  ExpressionId Literal(std::string_view bytes);  // "" matches the empty text
  // Returns one character of these, as UTF-8. Surrogates are left out; no range: nothing matches.
  ExpressionId Class(std::vector<CharRange> ranges);
  ExpressionId Sequence(std::span<const ExpressionId> parts);
  ExpressionId Sequence(std::initializer_list<ExpressionId> parts);
  ExpressionId Choice(std::span<const ExpressionId> parts);  // of nothing: nothing matches
  ExpressionId Choice(std::initializer_list<ExpressionId> parts);
  ExpressionId Repeat(ExpressionId of, uint32_t min, std::optional<uint32_t> max);
  ExpressionId Optional(ExpressionId of) { return Repeat(of, 0, 1); }
  ExpressionId Call(RuleId rule);
  // Returns the items in order, those that are optional or not, with the separator between any two,
  // and after the last, if there is one, `after`.
  ExpressionId List(ExpressionId separator, std::span<const ListItem> items, ExpressionId after);

  // Returns any bytes up to and with the first of these marks. kHiddenToken within a mark changes
  // nothing. REQUIRES: no mark is empty.
  ExpressionId Until(std::span<const std::string> marks);
  // Returns any bytes that have none of these marks.
  ExpressionId Without(std::span<const std::string> marks);

  RuleId AddRule(std::string name, std::string place = {});
  void Define(RuleId rule, ExpressionId expression);

  // kInvalidArgument once it is full.
  Status CheckSize() const;
  // Counts steps of work. kInvalidArgument where they are too many, also of all later calls; then a
  // schema may be left out, and the source is not full.
  Status Spend(uint64_t steps);

  const Expression& expression(ExpressionId id) const {
    return expressions_[static_cast<uint32_t>(id)];
  }
  size_t num_expressions() const { return expressions_.size(); }
  bool is_full() const { return is_full_; }
  std::string_view bytes(const Expression& of) const {
    return std::string_view(bytes_).substr(of.begin, of.end - of.begin);
  }
  std::span<const CharRange> ranges(const Expression& of) const {
    return std::span(ranges_).subspan(of.begin, of.end - of.begin);
  }
  std::span<const ListItem> items(const Expression& of) const {
    return std::span(items_).subspan(of.begin, of.end - of.begin);  // of kList: `after` is the last
  }
  std::span<const Rule> rules() const { return rules_; }
  const Rule& rule(RuleId id) const { return rules_[static_cast<uint32_t>(id)]; }

 private:
  bool TakeRoom(size_t bytes);
  ExpressionId Add(Expression expression);
  ExpressionId AddParts(Kind kind, std::span<const ExpressionId> parts);
  ExpressionId AddMarks(Kind kind, std::span<const std::string> marks);

  static constexpr ExpressionId kNoRoom{0};

  std::vector<Expression> expressions_{{Kind::kLiteral}};  // the first is kNoRoom
  std::string bytes_;
  std::vector<CharRange> ranges_;
  std::vector<ListItem> items_;  // children of sequences and choices too
  std::vector<Rule> rules_;
  size_t kept_bytes_ = 0;
  uint64_t steps_ = 0;
  bool is_full_ = false;
};

}  // namespace kvasir
