// JsonTree: the values of a JSON text, side by side in one arena.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir {

// One value, 16 bytes. Its JsonTree owns everything that it points to. Immutable.
class JsonValue {
 public:
  enum class Kind : uint8_t {
    kNull,
    kBool,
    kInteger,   // within int64_t
    kUnsigned,  // above it, within uint64_t
    kDigits,    // integers beyond those: the text
    kFloat,
    kString,
    kIds,  // a list of integers of 32 bits, four bytes each; empty lists are kArray
    kArray,
    kObject,
  };
  struct Member;

  JsonValue() : integer_(0) {}
  explicit JsonValue(bool value) : kind_(Kind::kBool), integer_(value) {}
  explicit JsonValue(int64_t value) : kind_(Kind::kInteger), integer_(value) {}
  explicit JsonValue(uint64_t value);
  explicit JsonValue(double value) : kind_(Kind::kFloat), number_(value) {}

  Kind kind() const { return kind_; }
  bool is_null() const { return kind_ == Kind::kNull; }
  bool is_bool() const { return kind_ == Kind::kBool; }
  bool is_number() const { return kind_ >= Kind::kInteger && kind_ <= Kind::kFloat; }
  bool is_integer() const { return kind_ >= Kind::kInteger && kind_ <= Kind::kDigits; }
  bool is_string() const { return kind_ == Kind::kString; }
  bool is_array() const { return kind_ == Kind::kArray; }
  bool is_object() const { return kind_ == Kind::kObject; }

  // REQUIRES: the value has the kind of the accessor's name.
  bool boolean() const { return integer_ != 0; }
  int64_t integer() const { return integer_; }
  uint64_t unsigned_integer() const { return static_cast<uint64_t>(integer_); }
  double number() const;             // of any number: the nearest one
  std::string integer_text() const;  // of any integer: as it was written
  std::string_view text() const { return {static_cast<const char*>(data_), size_}; }
  std::span<const int32_t> ids() const { return {static_cast<const int32_t*>(data_), size_}; }
  std::span<const JsonValue> items() const {  // empty for other kinds
    if (kind_ != Kind::kArray) return {};
    return {static_cast<const JsonValue*>(data_), size_};
  }
  // Returns them in the order of the text, each key once; none for other kinds.
  std::span<const Member> members() const;

  // Returns the number of bytes, ids, items or members; 0 for other kinds.
  size_t size() const { return kind_ >= Kind::kString ? size_ : 0; }
  // Returns the member of this name; null where it is missing or this is not an object. O(log
  // members).
  const JsonValue* Find(std::string_view key) const;

 private:
  friend class JsonTree;
  JsonValue(Kind kind, const void* data, size_t size)
      : kind_(kind), size_(static_cast<uint32_t>(size)), data_(data) {}

  Kind kind_ = Kind::kNull;
  uint32_t size_ = 0;
  union {
    int64_t integer_;
    double number_;
    const void* data_;
  };
};

struct JsonValue::Member {
  std::string_view key;
  JsonValue value;
};

// Owns the values that it makes until its end. Frees all of them in one step. One thread.
class JsonTree {
 public:
  JsonTree() = default;
  JsonTree(JsonTree&&) = default;
  JsonTree& operator=(JsonTree&&) = default;

  // Returns the value of a whole JSON text in UTF-8, nested at most 128 deep; nullopt when the text
  // is not valid.
  std::optional<JsonValue> Parse(std::string_view text);

  // Copies its arguments. O(size); Object O(n log n): of equal keys the first place and the last
  // value count.
  JsonValue String(std::string_view text) {
    return {JsonValue::Kind::kString, Keep(text), text.size()};
  }
  JsonValue Digits(std::string_view text) {
    return {JsonValue::Kind::kDigits, Keep(text), text.size()};
  }
  JsonValue Ids(std::span<const int32_t> ids);
  JsonValue Array(std::span<const JsonValue> items);
  JsonValue Object(std::vector<JsonValue::Member> members);
  // Copies text for a key.
  std::string_view KeepText(std::string_view text) { return {Keep(text), text.size()}; }

 private:
  template <typename T>
  T* New(size_t count) {
    return static_cast<T*>(Allocate(count * sizeof(T)));
  }
  const char* Keep(std::string_view text);
  void* Allocate(size_t bytes);  // aligned for 8

  std::vector<std::unique_ptr<std::byte[]>> chunks_;
  std::byte* next_ = nullptr;
  size_t left_ = 0;
};

// Builds values from the events of JsonParser. A subclass may hide some of the methods. One thread.
class JsonBuilder {
 public:
  using number_integer_t = int64_t;
  using number_unsigned_t = uint64_t;
  using number_float_t = long double;  // the parser refuses integers that are beyond it
  using string_t = std::string;
  using binary_t = std::vector<uint8_t>;

  explicit JsonBuilder(JsonTree* tree) : tree_(tree) {}

  bool null() { return Add(JsonValue()); }
  bool boolean(bool value) { return Add(JsonValue(value)); }
  bool number_integer(int64_t value) { return Add(JsonValue(value)); }
  bool number_unsigned(uint64_t value) { return Add(JsonValue(value)); }
  // Takes a number, also of integers beyond uint64_t. False: the number is beyond a double.
  bool number_float(long double value, const std::string& text);
  bool string(std::string& value) { return Add(tree_->String(value)); }
  bool binary(binary_t&) { return false; }  // JSON text has no binary values
  bool key(std::string& name);
  bool start_object(size_t) { return Open(); }
  bool end_object();
  bool start_array(size_t) { return Open(); }
  bool end_array();

  // REQUIRES: the parser took the whole text.
  const JsonValue& root() const { return root_; }
  // Returns a key that some object had twice.
  const std::optional<std::string_view>& doubled_key() const { return doubled_key_; }

 protected:
  bool Add(const JsonValue& value);
  JsonTree& tree() { return *tree_; }

 private:
  struct Container {
    size_t begin;          // first of its children in children_
    std::string_view key;  // its key in the object that holds it
  };
  bool Open();
  void Close();

  JsonTree* tree_;
  JsonValue root_;
  std::optional<std::string_view> doubled_key_;
  std::string_view key_;                     // key of the next value
  std::vector<Container> open_;              // outermost first
  std::vector<JsonValue::Member> children_;  // of all open containers
};

}  // namespace kvasir
