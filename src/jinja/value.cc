#include "jinja/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

namespace kvasir::jinja {
namespace {

template <typename T>
auto* Get(const Value& value) {
  const auto* p = std::get_if<std::shared_ptr<T>>(&value.data);
  return p ? p->get() : nullptr;
}

template <typename Container>
void Count(Container& container, const Value& child) {
  constexpr uint64_t kPlenty = uint64_t{1} << 60;
  container.depth = std::max(container.depth, DepthOf(child) + 1);
  container.weight = std::min(kPlenty, container.weight + WeightOf(child));
}

}  // namespace

const List* Value::list() const { return Get<const List>(*this); }
const Dict* Value::dict() const { return Get<const Dict>(*this); }
Namespace* Value::ns() const { return Get<Namespace>(*this); }
const Callable* Value::callable() const { return Get<const Callable>(*this); }
Loop* Value::loop() const { return Get<Loop>(*this); }

Value FromText(Text text) {
  const Origin origin = text.Summary();
  return Value(std::shared_ptr<const Text>(std::make_shared<Text>(std::move(text))), origin);
}
Value FromString(std::string_view text, Origin origin) {
  return Value(std::shared_ptr<const Text>(std::make_shared<Text>(text, origin)), origin);
}
Value FromInt(int64_t number, Origin origin) { return Value(number, origin); }

Value FromItems(std::vector<Value> items, List::Kind kind, std::string name) {
  auto list = std::make_shared<List>();
  list->kind = kind;
  list->name = std::move(name);
  Origin origin;
  for (const Value& item : items) {
    Count(*list, item);
    origin.input |= item.origin.input;
  }
  list->items = std::move(items);
  return Value(std::shared_ptr<const List>(std::move(list)), origin);
}

namespace {

constexpr size_t kMaxScanned = 16;  // keys of a dict without an index

// Returns a numeric key as long double, which holds every int64_t and every double.
std::optional<long double> AsNumberKey(const Value& key) {
  if (key.is_integer()) return static_cast<long double>(key.integer());
  if (key.is_float() && !std::isnan(key.number())) return key.number();
  return std::nullopt;
}

}  // namespace

const Dict::Index& Dict::Indexed() const {
  if (!index_.index) index_.index = std::make_unique<Index>();
  Index& index = *index_.index;
  for (; index.covered < items.size(); ++index.covered) {
    const Value& key = items[index.covered].first;
    if (key.is_string()) {
      index.texts.emplace(key.text().view(), index.covered);
    } else if (const auto number = AsNumberKey(key)) {
      index.numbers.emplace(*number, index.covered);
    } else {
      index.others.push_back(index.covered);
    }
  }
  return index;
}

const Value* Dict::Find(std::string_view key) const {
  if (items.size() > kMaxScanned) {
    const Index& index = Indexed();
    const auto found = index.texts.find(key);
    return found == index.texts.end() ? nullptr : &items[found->second].second;
  }
  for (const auto& [k, v] : items) {
    if (k.is_string() && k.text().view() == key) return &v;
  }
  return nullptr;
}

const Value* Dict::Find(const Value& key) const {
  if (key.is_string()) return Find(key.text().view());
  if (items.size() <= kMaxScanned) {
    for (const auto& [k, v] : items) {
      if (Equal(k, key)) return &v;
    }
    return nullptr;
  }
  const Index& index = Indexed();
  if (const auto number = AsNumberKey(key)) {
    const auto found = index.numbers.find(*number);
    return found == index.numbers.end() ? nullptr : &items[found->second].second;
  }
  for (const size_t i : index.others) {
    if (Equal(items[i].first, key)) return &items[i].second;
  }
  return nullptr;
}

void Dict::Set(Value key, Value value) {
  if (const Value* found = Find(key)) {
    Count(*this, value);
    *const_cast<Value*>(found) = std::move(value);
  } else {
    Append(std::move(key), std::move(value));
  }
}

void Dict::Append(Value key, Value value) {
  Count(*this, key);
  Count(*this, value);
  items.emplace_back(std::move(key), std::move(value));
}

Value FromDict(Dict dict, Origin origin) {
  for (const auto& [key, value] : dict.items) {
    origin.input |= key.origin.input || value.origin.input;
  }
  return Value(std::make_shared<const Dict>(std::move(dict)), origin);
}

const Value* Namespace::Find(std::string_view key) const {
  for (const auto& [k, v] : items) {
    if (k == key) return &v;
  }
  return nullptr;
}

void Namespace::Set(std::string_view key, Value value) {
  if (const Value* found = Find(key)) {
    *const_cast<Value*>(found) = std::move(value);
  } else {
    items.emplace_back(key, std::move(value));
  }
}

const Value* Arguments::Find(size_t index, std::string_view name) const {
  if (index < positional.size()) return &positional[index];
  for (const auto& [k, v] : named) {
    if (k == name) return &v;
  }
  return nullptr;
}

std::string_view TypeName(const Value& value) {
  if (const List* list = value.list()) {
    switch (list->kind) {
      case List::Kind::kList:
        return "list";
      case List::Kind::kTuple:
        return "tuple";
      case List::Kind::kRange:
        return "range";
      case List::Kind::kGenerator:
        return "generator";
      case List::Kind::kView:
        return list->name;
    }
  }
  static constexpr std::string_view kNames[] = {"Undefined", "NoneType", "bool",        "int",
                                                "float",     "str",      "list",        "dict",
                                                "Namespace", "function", "LoopContext", "int"};
  return kNames[value.data.index()];
}

bool Truthy(const Value& value) {
  if (value.is_undefined() || value.is_none()) return false;
  if (value.is_number()) return value.number() != 0;
  if (value.is_string()) return !value.text().empty();
  if (const List* list = value.list()) {
    return list->kind == List::Kind::kGenerator || !list->items.empty();
  }
  if (const Dict* dict = value.dict()) return !dict->items.empty();
  return true;
}

namespace {

bool EqualNumbers(const Value& a, const Value& b) {
  if (a.is_integer() && b.is_integer()) return a.integer() == b.integer();
  if (a.Is<BigInteger>() && b.Is<BigInteger>()) return a.data == b.data;
  return a.number() == b.number();
}

bool EqualDicts(const Dict& a, const Dict& b) {
  if (a.items.size() != b.items.size()) return false;
  return std::all_of(a.items.begin(), a.items.end(), [&](const auto& item) {
    const Value* other = b.Find(item.first);
    return other && Equal(item.second, *other);
  });
}

}  // namespace

bool Equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return EqualNumbers(a, b);
  if (a.data.index() != b.data.index()) return false;
  if (a.is_undefined() || a.is_none()) return true;
  if (a.is_string()) return a.text().bytes() == b.text().bytes();
  if (const List *x = a.list(), *y = b.list(); x) {
    if (x == y) return true;
    return x->kind == y->kind && x->kind != List::Kind::kGenerator &&
           std::equal(x->items.begin(), x->items.end(), y->items.begin(), y->items.end(), Equal);
  }
  if (const Dict* x = a.dict()) return EqualDicts(*x, *b.dict());
  return a.data == b.data;
}

std::partial_ordering Compare(const Value& a, const Value& b) {
  if (a.is_integer() && b.is_integer()) return a.integer() <=> b.integer();
  if (a.is_number() && b.is_number()) return a.number() <=> b.number();
  // The byte order of UTF-8 is the order of code points.
  if (a.is_string() && b.is_string()) return a.text().bytes() <=> b.text().bytes();
  const List *x = a.list(), *y = b.list();
  if (!x || !y || x->kind != y->kind) return std::partial_ordering::unordered;
  for (size_t i = 0; i < std::min(x->items.size(), y->items.size()); ++i) {
    if (!Equal(x->items[i], y->items[i])) return Compare(x->items[i], y->items[i]);
  }
  return x->items.size() <=> y->items.size();
}

std::string WhyUnhashable(const Value& value) {
  const List* list = value.list();
  const bool mutates = value.dict() || (list && list->kind == List::Kind::kList);
  if (mutates) return fmt::format("unhashable type: '{}'", TypeName(value));
  if (!list || list->kind != List::Kind::kTuple) return "";
  for (const Value& item : list->items) {
    if (std::string why = WhyUnhashable(item); !why.empty()) return why;
  }
  return "";
}

uint32_t DepthOf(const Value& value) {
  if (const List* list = value.list()) return list->depth;
  if (const Dict* dict = value.dict()) return dict->depth;
  // Values that hold a value which can be put into a list again: freeing a chain of them recurses.
  if (const Callable* callable = value.callable()) return DepthOf(callable->self) + 1;
  if (const Loop* loop = value.loop()) return loop->held_depth + 1;
  return 0;
}

uint64_t WeightOf(const Value& value) {
  // Runs count like bytes, because some texts have a run for every byte.
  if (value.is_string()) return 1 + value.text().size() / 16 + value.text().runs().size();
  if (const List* list = value.list()) return list->weight;
  if (const Dict* dict = value.dict()) return dict->weight;
  if (const auto* big = std::get_if<BigInteger>(&value.data)) return 1 + big->digits->size() / 16;
  return 1;
}

std::string FloatRepr(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  const double magnitude = std::fabs(number);
  // Python writes an exponent below 1e-4 and from 1e16 on, of at least two digits.
  const bool scientific = magnitude != 0 && (magnitude < 1e-4 || magnitude >= 1e16);
  char buffer[400];
  const auto format = scientific ? std::chars_format::scientific : std::chars_format::fixed;
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), number, format).ptr;
  std::string out(buffer, end);
  if (!scientific && out.find('.') == std::string::npos) out += ".0";
  return out;
}

namespace {

void ReprChar(Text& out, const Text& text, size_t offset, size_t size, char quote) {
  const Origin origin = text.OriginAt(offset);
  const char32_t code = CharAt(text.view(), offset);
  if (code == static_cast<char32_t>(quote) || code == '\\') {
    out.Append("\\", origin);
  } else if (code == '\n' || code == '\r' || code == '\t') {
    out.Append(code == '\n' ? "\\n" : code == '\r' ? "\\r" : "\\t", origin);
    return;
  } else if (!IsPrintable(code)) {
    const std::string escape = code < 0x100     ? fmt::format("\\x{:02x}", uint32_t(code))
                               : code < 0x10000 ? fmt::format("\\u{:04x}", uint32_t(code))
                                                : fmt::format("\\U{:08x}", uint32_t(code));
    out.Append(escape, origin);
    return;
  }
  out.Append(text, offset, offset + size);
}

Text ReprText(const Text& text, Origin edge) {
  const bool single = text.bytes().find('\'') != std::string::npos;
  const char quote = single && text.bytes().find('"') == std::string::npos ? '"' : '\'';
  Text out(std::string_view(&quote, 1), edge);
  for (size_t i = 0, n = 0; i < text.size(); i += n) {
    n = CharSize(text.view(), i);
    ReprChar(out, text, i, n, quote);
  }
  out.Append(std::string_view(&quote, 1), edge);
  return out;
}

Text ReprList(const List& list, Origin origin) {
  const bool tuple = list.kind == List::Kind::kTuple;
  if (list.kind == List::Kind::kRange) return Text(list.name, origin);
  if (list.kind == List::Kind::kGenerator) {
    return Text(fmt::format("<generator object {}>", list.name), origin);
  }
  Text out;
  if (list.kind == List::Kind::kView) out.Append(list.name + "(", origin);
  out.Append(tuple ? "(" : "[", origin);
  for (size_t i = 0; i < list.items.size(); ++i) {
    if (i > 0) out.Append(", ", origin);
    out.Append(Repr(list.items[i]));
  }
  if (tuple && list.items.size() == 1) out.Append(",", origin);
  out.Append(tuple ? ")" : "]", origin);
  if (list.kind == List::Kind::kView) out.Append(")", origin);
  return out;
}

Text ReprDict(const Dict& dict, Origin origin) {
  Text out("{", origin);
  for (size_t i = 0; i < dict.items.size(); ++i) {
    if (i > 0) out.Append(", ", origin);
    out.Append(Repr(dict.items[i].first));
    out.Append(": ", origin);
    out.Append(Repr(dict.items[i].second));
  }
  out.Append("}", origin);
  return out;
}

}  // namespace

Text Repr(const Value& value) {
  const Origin origin = value.origin;
  if (value.is_undefined()) return Text("Undefined", origin);
  if (value.is_none()) return Text("None", origin);
  if (value.is_bool()) return Text(value.integer() ? "True" : "False", origin);
  if (value.is_integer()) return Text(fmt::format("{}", value.integer()), origin);
  if (const auto* big = std::get_if<BigInteger>(&value.data)) return Text(*big->digits, origin);
  if (value.is_float()) return Text(FloatRepr(value.number()), origin);
  if (value.is_string()) return ReprText(value.text(), origin);
  if (const List* list = value.list()) return ReprList(*list, origin);
  if (const Dict* dict = value.dict()) return ReprDict(*dict, origin);
  if (value.ns()) return Text("<Namespace>", origin);  // may contain itself, so it is never visited
  return Text(fmt::format("<{}>", TypeName(value)), origin);
}

Text ToText(const Value& value) {
  if (value.is_string()) return value.text();
  if (value.is_undefined()) return Text();
  return Repr(value);
}

}  // namespace kvasir::jinja
