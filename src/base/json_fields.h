// JsonFields: reads a JSON object field by field, so that every error names its field.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_tree.h"
#include "kvasir/status.h"
#include "kvasir/types.h"

namespace kvasir {

inline constexpr size_t kMaxUnread = 64;  // names in the receipt

// Returns the kind of a value for messages: "a string", "an array".
std::string_view KindOf(const JsonValue& value);

// Returns what a value is for messages: a number, true or false, the first 64 bytes of a text in
// quotes, else its kind.
std::string FoundText(const JsonValue& value);

// Tells whether a value is a list of token ids (it may be empty), and its ids.
bool IsIds(const JsonValue& value);
std::span<const TokenId> AsIds(const JsonValue& value);

// Returns a number's text for an error: all of it, or the first digits of a very long one.
std::string NumberText(const JsonValue& value);

// The fields of one object, which must outlive it. null counts as absent. Readers do not
// change `out` when the field is absent. error() is about the first wrong field. One thread.
class JsonFields {
 public:
  // `path` comes before names in errors: "messages[2]."
  explicit JsonFields(const JsonValue& object, std::string path = "");

  // nullptr: absent or null. REQUIRES: `name` is a literal, because it is kept.
  const JsonValue* Find(std::string_view name);
  bool Has(std::string_view name) const;  // like Find, but does not count as read
  void Fail(std::string_view name, std::string message);
  // Does the same for a name that the client chose (Error::field_is_sent).
  void FailUnknown(std::string_view name, std::string message);
  void Fail(Error error);  // of an object within this one
  // Fails with what the field is: "is 5, not an object", where `wanted` is "an object".
  void Refuse(std::string_view name, std::string_view wanted);

  void Number(std::string_view name, double min, double max, float* out);
  // Takes integers, and also numbers such as 16.0, which some clients send.
  std::optional<int64_t> Integer(std::string_view name, int64_t min, int64_t max);
  void Unsigned(std::string_view name, uint32_t min, uint32_t max, uint32_t* out);
  void Bool(std::string_view name, bool* out);
  void String(std::string_view name, std::string* out);
  void Text(std::string_view name, std::string_view* out);  // the same, within the body
  void Ids(std::string_view name, uint32_t vocab_size, std::vector<TokenId>* out);
  // Reads one string or a list of at most `max` strings, each of min_bytes to max_bytes.
  void Strings(std::string_view name, size_t max, size_t max_bytes, std::vector<std::string>* out,
               size_t min_bytes = 1);

  const std::optional<Error>& error() const { return error_; }
  // Returns the names of fields that no call has read, each cut to 64 bytes, then those of objects
  // within this one: the first 64 of each, and how many more (base/cut_names.h).
  std::vector<std::string> Unread() const;
  // Adds the unread fields of an object within this one, by their paths.
  void TakeUnread(const JsonFields& inner);
  void TakeUnread(std::span<const std::string> paths);
  std::span<const std::string> inner_unread() const { return inner_unread_; }

 private:
  const JsonValue& object_;
  std::string path_;
  std::vector<std::string_view> read_;  // names that Find looked for
  std::vector<std::string> inner_unread_;
  std::optional<Error> error_;
};

// Returns the ids of a list from ParseBody; an error when it is not a list of ids of the
// vocabulary.
Result<std::vector<TokenId>> ToTokenIds(const JsonValue& value, uint32_t vocab_size,
                                        const std::string& field);

}  // namespace kvasir
