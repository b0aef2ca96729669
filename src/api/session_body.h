// The bodies of session requests.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "api/chat_message.h"
#include "api/chat_prompt.h"
#include "base/json_tree.h"
#include "http/json_body.h"
#include "kvasir/session.h"

namespace kvasir {

// Every function gives kInvalidArgument with the name of the field that is wrong. `tree` is that of
// `fields`, or lives as long.

// `messages`, as chat completions take them, with `segments`; none if the field is absent.
Result<std::vector<SessionMessage>> ReadSessionMessages(JsonFields& fields, const ModelView& model,
                                                        JsonTree* tree);
// Reads message `index` of them. O(its text).
Result<SessionMessage> ReadSessionMessage(const JsonValue& raw, size_t index,
                                          const ModelView& model, MessageRoom* room);
// `content` and `segments` of a message whose role is known.
Result<SessionMessage> ReadContent(JsonFields& fields, std::string_view role,
                                   const ModelView& model, JsonTree* tree);
// Returns what POST /v1/sessions sets, except the messages. max_context is the model's unless it is
// given.
Result<SessionSetup> ReadSetup(JsonFields& fields, const ModelView& model, JsonTree* tree);
// Returns the system message of `system`, and `messages`.
Result<std::vector<SessionMessage>> ReadFirstMessages(JsonFields& fields, const ModelView& model,
                                                      JsonTree* tree);

// Returns a message as chat completions take it.
Result<JsonValue> JsonOf(const SessionMessage& message, JsonTree* tree);
// Returns the members of a JSON object as SessionSetup keeps it; none of "".
Result<std::vector<JsonValue::Member>> MembersOf(std::string_view object, JsonTree* tree,
                                                 IdFields id_fields = {});

}  // namespace kvasir
