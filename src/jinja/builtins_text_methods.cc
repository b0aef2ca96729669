// Methods of strings.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "jinja/arguments.h"
#include "jinja/builtins.h"

namespace kvasir::jinja {
namespace {

using TextMethod = Value (*)(Interpreter&, const Text&, const Arguments&);

Value TextList(std::vector<Text> parts, List::Kind kind = List::Kind::kList) {
  std::vector<Value> items;
  for (Text& part : parts) items.push_back(FromText(std::move(part)));
  return FromItems(std::move(items), kind);
}

template <Side side>
Value StripMethod(Interpreter& run, const Text& self, const Arguments& arguments) {
  const Text* chars = StringArgument(run, arguments, 0, "chars");
  if (chars && !run.Charge(chars->size())) return Value();
  return FromText(Strip(self, side, chars));
}

size_t EndOfWord(std::string_view text, size_t at) {
  while (at < text.size() && !IsSpace(CharAt(text, at))) at += CharSize(text, at);
  return at;
}

size_t EndOfSpace(std::string_view text, size_t at) {
  while (at < text.size() && IsSpace(CharAt(text, at))) at += CharSize(text, at);
  return at;
}

// Returns the words between white space; after `max` of them the rest is one piece.
std::vector<Text> SplitSpace(const Text& text, int64_t max) {
  std::vector<Text> out;
  size_t at = EndOfSpace(text.view(), 0);
  for (; at < text.size() && max != 0; --max) {
    const size_t end = EndOfWord(text.view(), at);
    out.push_back(text.Slice(at, end));
    at = EndOfSpace(text.view(), end);
  }
  if (at < text.size()) out.push_back(text.Slice(at, text.size()));
  return out;
}

// Splits as SplitSpace, from the right.
std::vector<Text> SplitSpaceRight(const Text& text, int64_t max) {
  const std::string_view view = text.view();
  std::vector<Text> out;
  size_t end = Strip(text, Side::kRight, nullptr).size();
  for (; end > 0 && max != 0; --max) {
    size_t begin = end;
    for (size_t before; begin > 0; begin = before) {
      before = PreviousChar(view, begin);
      if (IsSpace(CharAt(view, before))) break;
    }
    out.push_back(text.Slice(begin, end));
    for (end = begin; end > 0; end = begin) {
      begin = PreviousChar(view, end);
      if (!IsSpace(CharAt(view, begin))) break;
    }
  }
  if (end > 0) out.push_back(text.Slice(0, end));
  std::reverse(out.begin(), out.end());
  return out;
}

// Arguments of split and rsplit; absent after a failure.
struct SplitArguments {
  const Text* separator;  // null: white space
  int64_t max;
};
std::optional<SplitArguments> ReadSplit(Interpreter& run, const Text& self,
                                        const Arguments& arguments) {
  const SplitArguments split{StringArgument(run, arguments, 0, "sep"),
                             IntArgument(run, arguments, 1, "maxsplit", -1)};
  if (run.failed()) return std::nullopt;
  if (split.separator && split.separator->empty()) return run.Fail("empty separator"), std::nullopt;
  const size_t sought = split.separator ? split.separator->size() : 0;
  if (!run.ChargeSearch(self.size(), sought)) return std::nullopt;
  return split;
}

// Counts the pieces of a text as they are made: each is an item of a list.
Value PieceList(Interpreter& run, std::vector<Text> pieces) {
  return run.Charge(4 * pieces.size()) ? TextList(std::move(pieces)) : Value();
}

Value Split(Interpreter& run, const Text& self, const Arguments& arguments) {
  const auto split = ReadSplit(run, self, arguments);
  if (!split) return Value();
  int64_t max = split->max;
  if (!split->separator) return PieceList(run, SplitSpace(self, max));
  const std::string_view separator = split->separator->view();
  std::vector<Text> out;
  size_t at = 0;
  for (size_t found;
       max != 0 && (found = FindText(self.view(), separator, at)) != std::string::npos; --max) {
    out.push_back(self.Slice(at, found));
    at = found + separator.size();
  }
  out.push_back(self.Slice(at, self.size()));
  return PieceList(run, std::move(out));
}

Value RightSplit(Interpreter& run, const Text& self, const Arguments& arguments) {
  const auto split = ReadSplit(run, self, arguments);
  if (!split) return Value();
  int64_t max = split->max;
  if (!split->separator) return PieceList(run, SplitSpaceRight(self, max));
  // From the left in the reversed text.
  const std::string_view view = self.view(), separator = split->separator->view();
  const std::string reversed(view.rbegin(), view.rend());
  const std::string wanted(separator.rbegin(), separator.rend());
  std::vector<Text> out;
  size_t at = 0;
  for (size_t found; max != 0 && (found = FindText(reversed, wanted, at)) != std::string::npos;
       --max) {
    out.push_back(self.Slice(self.size() - found, self.size() - at));
    at = found + wanted.size();
  }
  out.push_back(self.Slice(0, self.size() - at));
  std::reverse(out.begin(), out.end());
  return PieceList(run, std::move(out));
}

// Returns the part of self that [start, end) of startswith, find and count names; its offset in
// *base.
std::string_view Window(Interpreter& run, const Text& self, const Arguments& arguments,
                        size_t* base) {
  if (!arguments.Find(1, "start")) return *base = 0, self.view();
  if (!run.ChargeText(self.size())) return *base = 0, std::string_view();
  const int64_t size = static_cast<int64_t>(CharCount(self.view()));
  const auto clamp = [&](int64_t at) {
    return std::clamp<int64_t>(at < 0 ? at + size : at, 0, size);
  };
  const int64_t begin = clamp(IntArgument(run, arguments, 1, "start", 0));
  const int64_t end = clamp(IntArgument(run, arguments, 2, "end", size));
  *base = CharOffset(self.view(), begin);
  return self.view().substr(*base, CharOffset(self.view(), std::max(begin, end)) - *base);
}

template <bool at_end>
Value StartsOrEndsWith(Interpreter& run, const Text& self, const Arguments& arguments) {
  const Value* affix = arguments.Find(0, "prefix");
  if (!affix) return run.Fail("startswith and endswith take an argument");
  size_t base = 0;
  const std::string_view text = Window(run, self, arguments, &base);
  std::vector<Value> affixes = {*affix};
  if (const List* list = affix->list(); list && list->kind == List::Kind::kTuple) {
    affixes = list->items;
  }
  if (!run.Charge(WeightOf(*affix))) return Value();
  for (const Value& one : affixes) {
    if (!one.is_string()) {
      return run.Fail(fmt::format("expected a string or a tuple of them, got {}", TypeName(one)));
    }
    const std::string_view view = one.text().view();
    if (at_end ? text.ends_with(view) : text.starts_with(view)) return Value(true);
  }
  return Value(false);
}

template <bool from_right, bool must_be_there>
Value Find(Interpreter& run, const Text& self, const Arguments& arguments) {
  const Text* needle = StringArgument(run, arguments, 0, "sub");
  if (!needle) return run.Fail("find takes a string");
  size_t base = 0;
  const std::string_view text = Window(run, self, arguments, &base);
  if (!run.ChargeSearch(text.size(), needle->size())) return Value();
  const size_t at = needle->empty() ? (from_right ? text.size() : 0)
                    : from_right    ? FindLastText(text, needle->view())
                                    : FindText(text, needle->view());
  if (at != std::string::npos) return FromInt(CharCount(self.view().substr(0, base + at)));
  return must_be_there ? run.Fail("substring not found") : FromInt(-1);
}

Value Count(Interpreter& run, const Text& self, const Arguments& arguments) {
  const Text* needle = StringArgument(run, arguments, 0, "sub");
  if (!needle) return run.Fail("count takes a string");
  size_t base = 0;
  const std::string_view text = Window(run, self, arguments, &base);
  if (!run.ChargeSearch(text.size(), needle->size())) return Value();
  if (needle->empty()) return FromInt(CharCount(text) + 1);
  int64_t count = 0;
  for (size_t at = 0; (at = FindText(text, needle->view(), at)) != std::string::npos;
       at += needle->size()) {
    ++count;
  }
  return FromInt(count);
}

Value ReplaceMethod(Interpreter& run, const Text& self, const Arguments& arguments) {
  const Text* from = StringArgument(run, arguments, 0, "old");
  const Text* to = StringArgument(run, arguments, 1, "new");
  if (!from || !to) return run.Fail("replace takes two strings");
  return FromText(
      Replace(run, self, from->view(), *to, IntArgument(run, arguments, 2, "count", -1)));
}

Value JoinMethod(Interpreter& run, const Text& self, const Arguments& arguments) {
  const Value* iterable = arguments.Find(0, "iterable");
  if (!iterable) return run.Fail("join takes an argument");
  const std::vector<Value> items = run.Iterate(*iterable);
  for (const Value& item : items) {
    if (!item.is_string()) {
      return run.Fail(fmt::format("join: expected strings, got {}", TypeName(item)));
    }
  }
  return FromText(Join(run, items, self));
}

// Does as str.title: upper case after every character that is not a letter.
Value Title(Interpreter&, const Text& self, const Arguments&) {
  bool in_word = false;
  return FromText(MapChars(self, [&in_word](char32_t code, size_t) {
    return std::exchange(in_word, IsAlpha(code)) ? LowerOf(code) : UpperOf(code);
  }));
}

Value SwapCase(Interpreter&, const Text& self, const Arguments&) {
  return FromText(MapChars(self, [&self](char32_t code, size_t offset) {
    const std::string upper = UpperOf(code);
    return self.view().substr(offset).starts_with(upper) ? LowerOf(code) : upper;
  }));
}

template <bool suffix>
Value RemoveAffix(Interpreter& run, const Text& self, const Arguments& arguments) {
  const Text* affix = StringArgument(run, arguments, 0, "affix");
  if (!affix) return run.Fail("removeprefix and removesuffix take a string");
  const bool there =
      suffix ? self.view().ends_with(affix->view()) : self.view().starts_with(affix->view());
  if (!there) return FromText(self);
  return FromText(suffix ? self.Slice(0, self.size() - affix->size())
                         : self.Slice(affix->size(), self.size()));
}

template <bool from_right>
Value Partition(Interpreter& run, const Text& self, const Arguments& arguments) {
  const Text* separator = StringArgument(run, arguments, 0, "sep");
  if (!separator || separator->empty()) return run.Fail("partition takes a separator");
  if (!run.ChargeSearch(self.size(), separator->size())) return Value();
  const size_t at = from_right ? FindLastText(self.view(), separator->view())
                               : FindText(self.view(), separator->view());
  if (at == std::string::npos) {
    return from_right ? TextList({Text(), Text(), self}, List::Kind::kTuple)
                      : TextList({self, Text(), Text()}, List::Kind::kTuple);
  }
  const size_t end = at + separator->size();
  return TextList({self.Slice(0, at), self.Slice(at, end), self.Slice(end, self.size())},
                  List::Kind::kTuple);
}

template <Side side>  // the side to fill; both: center
Value Justify(Interpreter& run, const Text& self, const Arguments& arguments) {
  const int64_t width = IntArgument(run, arguments, 0, "width", 0);
  const Text fill = TextArgument(arguments, 1, "fillchar", " ");
  if (!run.ChargeText(self.size())) return Value();
  const int64_t missing = width - static_cast<int64_t>(CharCount(self.view()));
  if (missing <= 0) return FromText(self);
  const int64_t left = side == Side::kLeft    ? missing
                       : side == Side::kRight ? 0
                                              : missing / 2 + (missing & width & 1);
  Text out = Repeat(run, fill, left);
  out.Append(self);
  out.Append(Repeat(run, fill, missing - left));
  return FromText(std::move(out));
}

Value ZeroFill(Interpreter& run, const Text& self, const Arguments& arguments) {
  const int64_t missing =
      IntArgument(run, arguments, 0, "width", 0) - static_cast<int64_t>(CharCount(self.view()));
  const bool sign = self.view().starts_with('-') || self.view().starts_with('+');
  Text out = self.Slice(0, sign ? 1 : 0);
  out.Append(Repeat(run, Text("0"), missing));
  out.Append(self, sign ? 1 : 0, self.size());
  return FromText(std::move(out));
}

template <bool (*test)(char32_t)>
Value AllOf(Interpreter&, const Text& self, const Arguments&) {
  for (size_t i = 0; i < self.size(); i += CharSize(self.view(), i)) {
    if (!test(CharAt(self.view(), i))) return Value(false);
  }
  return Value(!self.empty());
}

bool IsDecimal(char32_t code) { return code >= '0' && code <= '9'; }
bool IsAlphaOrDigit(char32_t code) { return IsAlpha(code) || IsDecimal(code); }

template <bool upper>
Value IsCase(Interpreter&, const Text& self, const Arguments&) {
  const Text wanted = upper ? Upper(self) : Lower(self);
  const Text other = upper ? Lower(self) : Upper(self);
  return Value(self.bytes() == wanted.bytes() && self.bytes() != other.bytes());
}

const std::map<std::string_view, TextMethod>& TextMethods() {
  static const std::map<std::string_view, TextMethod> kMethods = {
      {"strip", StripMethod<Side::kBoth>},
      {"lstrip", StripMethod<Side::kLeft>},
      {"rstrip", StripMethod<Side::kRight>},
      {"split", Split},
      {"rsplit", RightSplit},
      {"splitlines",
       [](Interpreter& run, const Text& self, const Arguments& arguments) {
         return PieceList(run, SplitLines(self, BoolArgument(arguments, 0, "keepends", false)));
       }},
      {"startswith", StartsOrEndsWith<false>},
      {"endswith", StartsOrEndsWith<true>},
      {"find", Find<false, false>},
      {"rfind", Find<true, false>},
      {"index", Find<false, true>},
      {"rindex", Find<true, true>},
      {"count", Count},
      {"replace", ReplaceMethod},
      {"join", JoinMethod},
      {"upper", [](Interpreter&, const Text& s, const Arguments&) { return FromText(Upper(s)); }},
      {"lower", [](Interpreter&, const Text& s, const Arguments&) { return FromText(Lower(s)); }},
      {"casefold",
       [](Interpreter&, const Text& s, const Arguments&) { return FromText(Lower(s)); }},
      {"capitalize",
       [](Interpreter&, const Text& s, const Arguments&) { return FromText(Capitalize(s)); }},
      {"title", Title},
      {"swapcase", SwapCase},
      {"removeprefix", RemoveAffix<false>},
      {"removesuffix", RemoveAffix<true>},
      {"partition", Partition<false>},
      {"rpartition", Partition<true>},
      {"ljust", Justify<Side::kRight>},
      {"rjust", Justify<Side::kLeft>},
      {"center", Justify<Side::kBoth>},
      {"zfill", ZeroFill},
      {"isspace", AllOf<IsSpace>},
      {"isalpha", AllOf<IsAlpha>},
      {"isdigit", AllOf<IsDecimal>},
      {"isdecimal", AllOf<IsDecimal>},
      {"isnumeric", AllOf<IsDecimal>},
      {"isalnum", AllOf<IsAlphaOrDigit>},
      {"isupper", IsCase<true>},
      {"islower", IsCase<false>},
      {"format", FormatBraces},
  };
  return kMethods;
}

}  // namespace

std::vector<std::string_view> TextMethodNames() {
  std::vector<std::string_view> names;
  for (const auto& [name, function] : TextMethods()) names.push_back(name);
  return names;
}

bool IsTextMethod(std::string_view name) { return TextMethods().contains(name); }

Value CallTextMethod(Interpreter& run, const Text& self, std::string_view name,
                     const Arguments& arguments) {
  // These methods read only the ends of a text, or charge for what they read.
  const bool reads_all = !name.starts_with("starts") && !name.starts_with("ends");
  if (reads_all && !run.Charge(1 + self.size() / 16 + self.runs().size())) return Value();
  return TextMethods().find(name)->second(run, self, arguments);
}

}  // namespace kvasir::jinja
