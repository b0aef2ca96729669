// Parses a request's body into JSON of bounded size.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>

#include "base/json_fields.h"
#include "base/json_tree.h"
#include "base/json_writer.h"
#include "http/errors.h"
#include "kvasir/types.h"

namespace kvasir {

// Each value takes about a hundred bytes in a template, and a hostile body of 8 MiB could have four
// million of them.
inline constexpr size_t kMaxJsonValues = size_t{1} << 16;

// The fields of a body that may hold lists of token ids.
using IdFields = std::span<const std::string_view>;
inline constexpr std::string_view kCompletionIds[] = {"prompt", "stop_token_ids"};
inline constexpr std::string_view kChatIds[] = {"stop_token_ids"};
inline constexpr std::string_view kDetokenizeIds[] = {"tokens"};

// A request body: its fields, and the arena for them and for values made from them.
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
// Their texts begin with the subject: "the body is not valid JSON: ...".
Result<JsonBody> ParseBody(std::string_view body, IdFields id_fields = {},
                           std::string_view subject = "the body");

// Returns the same for a JSON object inside a body's text, where the last value of a key counts.
// Its values go to `tree`; they are taken from *values_left.
Result<JsonValue> ParseObject(std::string_view text, IdFields id_fields, size_t* values_left,
                              JsonTree* tree);

// `object` as an event of a stream (text/event-stream).
std::string SseEvent(const nlohmann::json& object);

}  // namespace kvasir
