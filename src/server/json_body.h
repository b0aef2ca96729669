// From a request's body to JSON of bounded size.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>

#include "base/json_tree.h"
#include "kvasir/types.h"
#include "server/errors.h"

namespace kvasir {

// A template makes some hundred bytes of a value, and a hostile body of 8 MiB has four million.
inline constexpr size_t kMaxJsonValues = size_t{1} << 16;

// The fields of a body that may hold lists of token ids.
using IdFields = std::span<const std::string_view>;
inline constexpr std::string_view kCompletionIds[] = {"prompt", "stop_token_ids"};
inline constexpr std::string_view kChatIds[] = {"stop_token_ids"};
inline constexpr std::string_view kDetokenizeIds[] = {"tokens"};

// A request body: its fields, and the arena that holds them and what is made of them.
struct JsonBody {
  JsonTree tree;
  JsonValue fields;  // an object
};

// Parses a request body: a JSON object in UTF-8, nested at most 64 deep (what reads it afterwards,
// templates above all, may recurse), of at most kMaxJsonValues values. Lists of numbers in
// `id_fields` count as one value: they are kept as token ids, four bytes each (AsIds). O(size log
// keys). Of a body that nests deeper nothing else is looked at. Errors:
// - kInvalidArgument names the first byte that is wrong: not UTF-8, NUL, or not JSON.
// - kInvalidArgument names a key that an object has twice: readers differ in which value counts.
// - kExhausted, of the field "body", names the limit.
Result<JsonBody> ParseBody(std::string_view body, IdFields id_fields = {});

// The same for a JSON object inside a body's text, where the last value of a key counts. Its values
// go to `tree`; they are taken from *values_left.
Result<JsonValue> ParseObject(std::string_view text, IdFields id_fields, size_t* values_left,
                              JsonTree* tree);

// Whether a value is a list of token ids, an empty one included, and the ids of one that is.
bool IsIds(const JsonValue& value);
std::span<const TokenId> AsIds(const JsonValue& value);

// Text of a JSON value for an answer; bytes that are not UTF-8 become U+FFFD.
std::string Dump(const nlohmann::json& value);

// Appends the front of `rest` as a JSON string has it, without quotes, and takes it off: whole
// characters, 2 KiB or a little more.
void AppendEscaped(std::string_view* rest, std::string* out);

// What "a string" or "an array" a value is, for messages.
std::string_view KindOf(const JsonValue& value);

}  // namespace kvasir
