// Converts request data to template values that know their origin.
#pragma once

#include <cstdint>
#include <vector>

#include "base/json_tree.h"
#include "jinja/chat_part.h"
#include "jinja/value.h"
#include "kvasir/status.h"

namespace kvasir::jinja {

// Converts JSON to a value whose parts all have this origin; by default it is input. Keeps the
// order of keys.
// kInvalidArgument: the data is nested too deeply.
Result<Value> FromJson(const JsonValue& data, Origin origin = {std::nullopt, /*input=*/true});

// How the text of a message's content is given to a template: as it is, or as the only part of a
// list, [{"type": "text", "text": ...}].
enum class ContentForm : uint8_t { kText, kParts };

// Converts the list of messages, each tagged with its index. The role of a message counts as
// template text if it is one of the roles that the API knows (system, developer, user, assistant,
// tool): templates build special tokens from it. Appends what the messages say to *parts: their
// bytes have its number as Origin::part. REQUIRES: an array.
Result<Value> FromMessages(const JsonValue& messages, ContentForm form,
                           std::vector<ChatPart>* parts);

}  // namespace kvasir::jinja
