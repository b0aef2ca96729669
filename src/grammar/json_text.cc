#include "grammar/json_text.h"

#include <algorithm>
#include <utility>

#include "base/json_writer.h"
#include "base/result.h"
#include "base/utf8.h"
#include "grammar/schema_keywords.h"

namespace kvasir {
namespace {

constexpr uint32_t kMaxDigits = 18, kMaxFraction = 16, kMaxBoundFraction = 6, kMaxIndent = 20;
constexpr size_t kMaxNameChars = 256;  // of names that other names must differ from

// Returns the characters that a JSON string has as they are.
std::vector<CharRange> PlainChars() { return Complement({{0, 0x1F}, {'"', '"'}, {'\\', '\\'}}); }

// Returns what both have.
std::vector<CharRange> Common(std::vector<CharRange> one, std::vector<CharRange> other) {
  std::vector<CharRange> outside = Complement(std::move(one));
  const std::vector<CharRange> also = Complement(std::move(other));
  outside.insert(outside.end(), also.begin(), also.end());
  return Complement(std::move(outside));
}

}  // namespace

ExpressionId JsonText::Shared(std::optional<RuleId>* rule, const char* name,
                              ExpressionId (JsonText::*make)()) {
  if (!*rule) {
    *rule = source_->AddRule(name);
    source_->Define(**rule, (this->*make)());
  }
  return source_->Call(**rule);
}

ExpressionId JsonText::Space() { return Shared(&space_, "white space", &JsonText::MakeSpace); }
ExpressionId JsonText::AnyValue() { return Shared(&value_, "value", &JsonText::MakeValue); }
ExpressionId JsonText::AnyString() { return Shared(&string_, "string", &JsonText::MakeString); }
ExpressionId JsonText::AnyInteger() { return Shared(&integer_, "integer", &JsonText::MakeInteger); }
ExpressionId JsonText::AnyNumber() { return Shared(&number_, "number", &JsonText::MakeNumber); }
ExpressionId JsonText::AnyObject() { return Shared(&object_, "object", &JsonText::MakeObject); }
ExpressionId JsonText::AnyArray() { return Shared(&array_, "array", &JsonText::MakeArray); }

ExpressionId JsonText::MakeSpace() {
  const ExpressionId indent =
      source_->Repeat(source_->Class({{' ', ' '}, {'\t', '\t'}}), 0, kMaxIndent);
  return source_->Choice({source_->Literal(""), source_->Literal(" "),
                          source_->Sequence({source_->Literal("\n"), indent})});
}

// Makes a character of a string. A pair of surrogates is one; half a pair is not written.
ExpressionId JsonText::MakeChar() {
  const ExpressionId hex = source_->Class({{'0', '9'}, {'a', 'f'}, {'A', 'F'}});
  const ExpressionId d = source_->Class({{'d', 'd'}, {'D', 'D'}});
  const ExpressionId not_d =
      source_->Class({{'0', '9'}, {'a', 'c'}, {'A', 'C'}, {'e', 'f'}, {'E', 'F'}});
  const ExpressionId two = source_->Sequence({hex, hex}), u = source_->Literal("\\u");
  const ExpressionId high = source_->Class({{'8', '9'}, {'a', 'b'}, {'A', 'B'}});
  const ExpressionId low = source_->Class({{'c', 'f'}, {'C', 'F'}});
  return source_->Choice({source_->Class(PlainChars()),
                          source_->Sequence({source_->Literal("\\"), source_->Class({{'"', '"'},
                                                                                     {'\\', '\\'},
                                                                                     {'/', '/'},
                                                                                     {'b', 'b'},
                                                                                     {'f', 'f'},
                                                                                     {'n', 'n'},
                                                                                     {'r', 'r'},
                                                                                     {'t', 't'}})}),
                          source_->Sequence({u, not_d, hex, two}),
                          source_->Sequence({u, d, source_->Class({{'0', '7'}}), two}),
                          source_->Sequence({u, d, high, two, u, d, low, two})});
}

ExpressionId JsonText::MakeString() {
  return source_->Sequence({source_->Literal("\""), source_->Repeat(MakeChar(), 0, std::nullopt),
                            source_->Literal("\"")});
}

ExpressionId JsonText::StringOfLength(uint32_t least, std::optional<uint32_t> most) {
  return source_->Sequence(
      {source_->Literal("\""), source_->Repeat(Char(), least, most), source_->Literal("\"")});
}

ExpressionId JsonText::Digit(char first, char last) {
  return source_->Class({{static_cast<char32_t>(first), static_cast<char32_t>(last)}});
}

ExpressionId JsonText::Digits(uint32_t least, uint32_t most) {
  return source_->Repeat(Digit('0', '9'), least, most);
}

ExpressionId JsonText::MakeInteger() {
  return source_->Sequence({source_->Optional(source_->Literal("-")), Between("0", std::nullopt)});
}

ExpressionId JsonText::MakeNumber() {
  const ExpressionId fraction = source_->Sequence({source_->Literal("."), Digits(1, kMaxFraction)});
  // At most two digits: far from what a double cannot hold.
  const ExpressionId exponent = source_->Sequence(
      {source_->Class({{'e', 'e'}, {'E', 'E'}}),
       source_->Optional(source_->Class({{'+', '+'}, {'-', '-'}})), Digits(1, 2)});
  return source_->Sequence(
      {MakeInteger(), source_->Optional(fraction), source_->Optional(exponent)});
}

ExpressionId JsonText::Constant(const JsonValue& value) {
  const bool is_object = value.is_object();
  if (!is_object && value.kind() != JsonValue::Kind::kArray) {
    return source_->Literal(SortedTextOf(value));
  }
  std::vector<ExpressionId> parts = {source_->Literal(is_object ? "{" : "["), Space()};
  const size_t size = value.size();
  for (size_t i = 0; i < size; ++i) {
    if (is_object) {
      parts.push_back(source_->Literal(Quoted(value.members()[i].key) + ":"));
      parts.push_back(Space());
    }
    if (source_->is_full()) break;
    parts.push_back(Constant(is_object ? value.members()[i].value : value.items()[i]));
    if (i + 1 < size) parts.push_back(source_->Literal(","));
    parts.push_back(Space());
  }
  parts.push_back(source_->Literal(is_object ? "}" : "]"));
  return source_->Sequence(parts);
}

ExpressionId JsonText::MakeValue() {
  return source_->Choice({AnyObject(), AnyArray(), AnyString(), AnyNumber(),
                          source_->Literal("true"), source_->Literal("false"),
                          source_->Literal("null")});
}

ExpressionId JsonText::MakeObject() {
  const ExpressionId member =
      source_->Sequence({AnyString(), source_->Literal(":"), Space(), AnyValue()});
  const ExpressionId more = source_->Sequence({source_->Literal(","), Space(), member});
  return source_->Sequence({source_->Literal("{"), Space(),
                            source_->Optional(source_->Sequence(
                                {member, source_->Repeat(more, 0, std::nullopt), Space()})),
                            source_->Literal("}")});
}

ExpressionId JsonText::MakeArray() {
  const ExpressionId more = source_->Sequence({source_->Literal(","), Space(), AnyValue()});
  return source_->Sequence({source_->Literal("["), Space(),
                            source_->Optional(source_->Sequence(
                                {AnyValue(), source_->Repeat(more, 0, std::nullopt), Space()})),
                            source_->Literal("]")});
}

ExpressionId JsonText::DigitsBetween(std::string_view low, std::string_view high) {
  if (low.empty()) return source_->Literal("");
  const auto rest = static_cast<uint32_t>(low.size() - 1);
  const std::string zeros(rest, '0'), nines(rest, '9');
  const auto with = [&](char digit, std::string_view from, std::string_view to) {
    return source_->Sequence({Digit(digit, digit), DigitsBetween(from, to)});
  };
  if (low.substr(1) == zeros && high.substr(1) == nines) {
    return source_->Sequence({Digit(low[0], high[0]), Digits(rest, rest)});
  }
  if (low[0] == high[0]) return with(low[0], low.substr(1), high.substr(1));
  std::vector<ExpressionId> parts = {with(low[0], low.substr(1), nines),
                                     with(high[0], zeros, high.substr(1))};
  if (high[0] - low[0] > 1) {
    parts.push_back(
        source_->Sequence({Digit(static_cast<char>(low[0] + 1), static_cast<char>(high[0] - 1)),
                           Digits(rest, rest)}));
  }
  return source_->Choice(parts);
}

ExpressionId JsonText::Between(std::string_view low, std::optional<std::string> high) {
  if (!high) high = std::string(std::max<size_t>(kMaxDigits, low.size()), '9');
  std::vector<ExpressionId> parts;
  for (size_t size = low.size(); size <= high->size(); ++size) {
    const std::string first = size == 1 ? "0" : "1" + std::string(size - 1, '0');
    parts.push_back(DigitsBetween(size == low.size() ? std::string(low) : first,
                                  size == high->size() ? *high : std::string(size, '9')));
  }
  return source_->Choice(parts);
}

ExpressionId JsonText::Integer(const IntegerBounds& bounds) {
  const auto& [least, most] = bounds;
  if (!least && !most) return AnyInteger();
  const auto digits = [](const std::optional<Decimal>& bound) {
    return bound ? std::optional(bound->digits) : std::nullopt;
  };
  std::vector<ExpressionId> parts;
  if (!most || !most->is_negative) {
    parts.push_back(Between(least && !least->is_negative ? least->digits : "0", digits(most)));
  }
  if (!least || least->is_negative) {
    const std::string low = most && most->is_negative ? most->digits : "1";
    parts.push_back(source_->Sequence({source_->Literal("-"), Between(low, digits(least))}));
  }
  return source_->Choice(parts);
}

namespace {

// Returns digits + 1, or - 1 of what is above 0.
std::string Step(std::string digits, bool up) {
  size_t i = digits.size();
  while (i-- > 0) {
    if (digits[i] != (up ? '9' : '0')) {
      digits[i] = static_cast<char>(digits[i] + (up ? 1 : -1));
      break;
    }
    digits[i] = up ? '0' : '9';
  }
  if (up && digits[0] == '0') digits.insert(digits.begin(), '1');
  if (digits.size() > 1 && digits[0] == '0') digits.erase(digits.begin());
  return digits;
}

Decimal Moved(const Decimal& from, bool up) {
  if (from.digits == "0") return {!up, "1"};
  Decimal to{from.is_negative, Step(from.digits, up != from.is_negative)};
  to.is_negative &= to.digits != "0";
  return to;
}

}  // namespace

Decimal Decimal::Of(std::string_view text) {
  const bool is_negative = text.starts_with('-');
  const std::string_view digits = text.substr(is_negative ? 1 : 0);
  return {is_negative && digits != "0", std::string(digits)};
}

Decimal Decimal::Next() const { return Moved(*this, /*up=*/true); }
Decimal Decimal::Previous() const { return Moved(*this, /*up=*/false); }

std::strong_ordering Decimal::operator<=>(const Decimal& other) const {
  if (is_negative != other.is_negative) return other.is_negative <=> is_negative;
  const auto by_size = digits.size() <=> other.digits.size();
  const auto order = by_size != 0 ? by_size : digits.compare(other.digits) <=> 0;
  return is_negative ? (order < 0   ? std::strong_ordering::greater
                        : order > 0 ? std::strong_ordering::less
                                    : order)
                     : order;
}

std::optional<ExpressionId> JsonText::Magnitude(const NumberBounds& bounds) {
  std::vector<ExpressionId> parts;
  const ExpressionId point = source_->Literal(".");
  int64_t least = *bounds.least;
  const bool is_one = bounds.most && *bounds.most == least;
  if (bounds.is_above_least) {
    for (uint32_t zeros = 0; !is_one && zeros < kMaxBoundFraction; ++zeros) {
      parts.push_back(source_->Sequence({source_->Literal(std::to_string(least)), point,
                                         source_->Literal(std::string(zeros, '0')), Digit('1', '9'),
                                         Digits(0, kMaxBoundFraction - 1 - zeros)}));
    }
    ++least;
  }
  if (!bounds.most || *bounds.most > least) {
    const auto last = bounds.most ? std::optional(std::to_string(*bounds.most - 1)) : std::nullopt;
    parts.push_back(source_->Sequence(
        {Between(std::to_string(least), last),
         source_->Optional(source_->Sequence({point, Digits(1, kMaxBoundFraction)}))}));
  }
  if (bounds.most && !bounds.is_below_most && !(is_one && bounds.is_above_least)) {
    const ExpressionId zeros = source_->Repeat(Digit('0', '0'), 1, kMaxBoundFraction);
    parts.push_back(source_->Sequence({source_->Literal(std::to_string(*bounds.most)),
                                       source_->Optional(source_->Sequence({point, zeros}))}));
  }
  return parts.empty() ? std::nullopt : std::optional(source_->Choice(parts));
}

ExpressionId JsonText::Number(const NumberBounds& bounds) {
  const auto [least, most, is_above, is_below] = bounds;
  std::vector<ExpressionId> parts;
  if (!most || *most >= 0) {
    const bool has_least = least && *least >= 0;
    const auto part = Magnitude({has_least ? *least : 0, most, has_least && is_above, is_below});
    if (part) parts.push_back(*part);
  }
  if (!least || *least < 0) {
    const bool has_most = most && *most <= 0;
    const auto part =
        Magnitude({has_most ? -*most : 0, least ? std::optional(-*least) : std::nullopt,
                   has_most && is_below, is_above});
    if (part) parts.push_back(source_->Sequence({source_->Literal("-"), *part}));
  }
  return source_->Choice(parts);
}

ExpressionId JsonText::WriteChars(GrammarSource* source, std::vector<CharRange> ranges) {
  std::vector<ExpressionId> parts = {source->Class(Common(ranges, PlainChars()))};
  for (const CharRange& range : Common(std::move(ranges), {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}})) {
    for (char32_t c = range.first; c <= range.last; ++c) {
      static constexpr std::string_view kShort = "\b\t\n\f\r\"\\", kNames = "btnfr\"\\";
      const size_t i = kShort.find(static_cast<char>(c));
      parts.push_back(source->Literal(i == std::string_view::npos
                                          ? fmt::format("\\u{:04x}", static_cast<uint32_t>(c))
                                          : std::string{'\\', kNames[i]}));
    }
  }
  return source->Choice(parts);
}

Result<ExpressionId> JsonText::OtherName(std::vector<std::string> names) {
  std::vector<std::u32string> chars;
  for (const std::string& name : names) {
    std::u32string text;
    for (size_t pos = 0; pos < name.size();) text += NextChar(name, &pos);
    if (text.size() > kMaxNameChars) {
      return Fail(Code::kInvalidArgument, "a property has a name of more than {} characters",
                  kMaxNameChars);
    }
    chars.push_back(std::move(text));
  }
  std::sort(chars.begin(), chars.end());
  const ExpressionId other = OtherThan(chars, 0, chars.size(), 0);
  return source_->Sequence({source_->Literal("\""), other, source_->Literal("\"")});
}

// Returns what may follow the first `depth` characters of names [begin, end), which share them, so
// that the whole is another name.
ExpressionId JsonText::OtherThan(const std::vector<std::u32string>& names, size_t begin, size_t end,
                                 size_t depth) {
  std::vector<ExpressionId> parts;
  if (source_->is_full()) return source_->Choice(parts);
  if (begin < end && names[begin].size() == depth) {
    while (begin < end && names[begin].size() == depth) ++begin;
  } else {
    parts.push_back(source_->Literal(""));
  }
  std::vector<CharRange> known;
  for (size_t i = begin, next; i < end; i = next) {
    const char32_t c = names[i][depth];
    for (next = i; next < end && names[next][depth] == c;) ++next;
    known.push_back({c, c});
    const std::vector<CharRange> plain = Common({{c, c}}, PlainChars());
    if (plain.empty()) continue;  // it needs an escape
    parts.push_back(
        source_->Sequence({source_->Class(plain), OtherThan(names, i, next, depth + 1)}));
  }
  parts.push_back(
      source_->Sequence({source_->Class(Common(Complement(std::move(known)), PlainChars())),
                         source_->Repeat(source_->Class(PlainChars()), 0, std::nullopt)}));
  return source_->Choice(parts);
}

}  // namespace kvasir
