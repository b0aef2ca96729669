// Values of a template: of names, expressions and message fields.
#pragma once

#include <compare>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "jinja/text.h"

namespace kvasir::jinja {

struct List;
struct Dict;
struct Namespace;
struct Callable;
struct Loop;
struct Node;
struct Scope;

// A missing name or field. Renders as nothing; any other use is an error with the reason.
struct Undefined {
  std::shared_ptr<const std::string> why;
  bool operator==(const Undefined&) const = default;
};
struct None {
  bool operator==(const None&) const = default;
};

// An integer beyond int64_t, as it was written. It counts as a float wherever it is computed with.
struct BigInteger {
  std::shared_ptr<const std::string> digits;
  double nearest = 0;
  bool operator==(const BigInteger& other) const { return *digits == *other.digits; }
};

// One value. Containers are shared and immutable (transformers renders in an immutable sandbox);
// only a Namespace changes. One thread at a time.
struct Value {
  using Data = std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const Text>,
                            std::shared_ptr<const List>, std::shared_ptr<const Dict>,
                            std::shared_ptr<Namespace>, std::shared_ptr<const Callable>,
                            std::shared_ptr<Loop>, BigInteger>;
  Data data;
  Origin origin;  // for values that are not text: a user's number renders as input
  // A string that `safe` or `escape` made: another one that is added to it is escaped. Lost by all
  // but assignments and additions.
  bool is_markup = false;

  Value() = default;
  Value(Data d, Origin o = {}) : data(std::move(d)), origin(o) {}
  Value WithOrigin(Origin o) && {
    origin = o;
    return std::move(*this);
  }

  template <typename T>
  bool Is() const {
    return std::holds_alternative<T>(data);
  }
  bool is_undefined() const { return Is<Undefined>(); }
  bool is_none() const { return Is<None>(); }
  bool is_bool() const { return Is<bool>(); }
  bool is_integer() const { return Is<int64_t>() || Is<bool>(); }  // bool is an int, as in Python
  bool is_float() const { return Is<double>() || Is<BigInteger>(); }
  bool is_number() const { return is_integer() || is_float(); }
  bool is_string() const { return Is<std::shared_ptr<const Text>>(); }
  // REQUIRES: the value has the kind of the accessor's name.
  int64_t integer() const { return Is<bool>() ? std::get<bool>(data) : std::get<int64_t>(data); }
  double number() const {
    if (const auto* big = std::get_if<BigInteger>(&data)) return big->nearest;
    return Is<double>() ? std::get<double>(data) : double(integer());
  }
  const Text& text() const { return *std::get<std::shared_ptr<const Text>>(data); }
  // Null when the value is of another kind.
  const List* list() const;
  const Dict* dict() const;
  Namespace* ns() const;
  const Callable* callable() const;
  Loop* loop() const;
};

Value FromText(Text text);
Value FromString(std::string_view text, Origin origin = {});
Value FromInt(int64_t number, Origin origin = {});

struct List {
  // Generators are truthy, have no length and can be iterated once; views have no subscript.
  enum class Kind { kList, kTuple, kGenerator, kView, kRange };
  Kind kind = Kind::kList;
  std::vector<Value> items;
  std::string name;    // what Python prints for a view, a generator or a range
  uint32_t depth = 1;  // nesting and size of the content, bounded by the interpreter
  uint64_t weight = 1;
  mutable size_t taken = 0;  // of a generator
};
Value FromItems(std::vector<Value> items, List::Kind kind = List::Kind::kList,
                std::string name = {});

// Lookup and assignment take O(log items) for keys that are texts or numbers, O(items) for others.
struct Dict {
  std::vector<std::pair<Value, Value>> items;  // in order of insertion
  uint32_t depth = 1;
  uint64_t weight = 1;
  void Reserve(size_t count) { items.reserve(count); }
  const Value* Find(std::string_view key) const;
  const Value* Find(const Value& key) const;
  void Set(Value key, Value value);
  void Append(Value key, Value value);  // REQUIRES: the key is new.

 private:
  // Positions of keys, built at the first lookup when there are many. (Not a hash table: a client
  // that knows the function could make all hashes equal.) A copy builds its own.
  struct Index {
    std::map<std::string_view, size_t> texts;  // views of the keys' own texts, which never move
    std::map<long double, size_t> numbers;     // exact for int64_t and double
    std::vector<size_t> others;                // tuples, None, NaN
    size_t covered = 0;                        // indexed items
  };
  struct LazyIndex {
    LazyIndex() = default;
    LazyIndex(const LazyIndex&) {}
    LazyIndex& operator=(const LazyIndex&) {
      index.reset();
      return *this;
    }
    LazyIndex(LazyIndex&&) = default;
    LazyIndex& operator=(LazyIndex&&) = default;
    std::unique_ptr<Index> index;
  };
  const Index& Indexed() const;
  mutable LazyIndex index_;
};
Value FromDict(Dict dict, Origin origin = {});

struct Namespace {
  std::vector<std::pair<std::string, Value>> items;
  const Value* Find(std::string_view key) const;
  void Set(std::string_view key, Value value);
};

// A callable value: a global function, a method bound to self, or a macro with the scope of its
// definition. (Loop handles calls of a recursive `loop`.)
struct Callable {
  enum class Kind { kFunction, kMethod, kMacro };
  Kind kind;
  std::string name;
  Value self;
  const Node* node = nullptr;  // macro or call block
  std::shared_ptr<Scope> scope;
};

// The `loop` of a for statement.
struct Loop {
  std::vector<Value> items;
  size_t index = 0;
  size_t depth = 0;
  uint32_t held_depth = 0;  // of its deepest item
  const Node* node = nullptr;
  std::shared_ptr<Scope> scope;
  std::vector<Value> last_changed;
  bool has_changed = false;
};

// Arguments of a call, a filter or a test.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
  // Returns the argument at `index` or of this name; null when not given.
  const Value* Find(size_t index, std::string_view name) const;
};

std::string_view TypeName(const Value& value);  // as Python names it: "str", "dict" ...
bool Truthy(const Value& value);
bool Equal(const Value& a, const Value& b);
// Returns unordered when Python would raise TypeError.
std::partial_ordering Compare(const Value& a, const Value& b);
uint32_t DepthOf(const Value& value);
// Returns the number of steps to visit all of a value: one for each item and each 16 bytes of text.
// Lists that contain each other many times are short to write and very long to print; their weight
// shows it.
uint64_t WeightOf(const Value& value);

// Returns why a value cannot be a key of a dict; "" if it can.
std::string WhyUnhashable(const Value& value);

Text ToText(const Value& value);  // str(value); "" of undefined
Text Repr(const Value& value);    // repr(value)
std::string FloatRepr(double number);

}  // namespace kvasir::jinja
