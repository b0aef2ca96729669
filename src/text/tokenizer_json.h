// Typed fields of an untrusted JSON object, and the steps that tokenizer.json lists.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "kvasir/status.h"

namespace kvasir {

// Returns the field's value; `fallback` where it is absent or null. kCorruption names the file and
// the field: its type is wrong.
Result<std::string> StringField(const nlohmann::json& object, const char* name,
                                std::string_view fallback,
                                std::string_view file = "tokenizer.json");
Result<bool> BoolField(const nlohmann::json& object, const char* name, bool fallback,
                       std::string_view file = "tokenizer.json");

// What a Metaspace says, as a pre-tokenizer and as a decoder.
struct MetaspaceFields {
  std::string replacement;  // one character
  std::string scheme;       // prepend_scheme; old files say add_prefix_space
};
Result<MetaspaceFields> ReadMetaspace(const nlohmann::json& value);

// Tells whether the text, which is UTF-8, has one character.
bool IsOneChar(std::string_view text);

// Calls `take` with `value`, or with each step of the list `list` if it is a Sequence, in order;
// Sequences may nest 16 deep. Returns the first error of `take`; kCorruption, with `kind` as the
// subject ("decoder"): `value` is not an object, or a Sequence has no list or nests deeper.
Status ForEachStep(const nlohmann::json& value, std::string_view kind, const char* list,
                   const std::function<Status(const nlohmann::json&)>& take);

}  // namespace kvasir
