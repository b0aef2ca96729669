// Request data to template values that know their origin.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "kvasir/status.h"
#include "text/jinja_value.h"

namespace kvasir::jinja {

// Everything in the result is input. kInvalidArgument where data is nested too deeply. For
// nlohmann::json and nlohmann::ordered_json, whose order of keys is kept.
template <typename Json>
Result<Value> FromJson(const Json& data);

// The same for the list of messages, each tagged with its index. The role of a message counts as
// template text if it is one of the roles that the API knows (system, developer, user, assistant,
// tool): templates build special tokens from it.
template <typename Json>
Result<Value> FromMessages(const Json& messages);

}  // namespace kvasir::jinja
