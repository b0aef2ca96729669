// One message of a chat request, as chat templates see it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "api/model_view.h"
#include "chat/template_form.h"
#include "http/json_body.h"
#include "kvasir/status.h"

namespace kvasir {

// What reading the messages of a request needs and finds.
struct MessageRoom {
  JsonTree* tree;
  size_t values_left = kMaxJsonValues;  // of the arguments of calls, in all messages
  std::vector<std::string> unread;      // paths of fields of text parts that say nothing here
  bool takes_spans = false;             // text parts may have `span`
};

// Reads a message of a request: its content is a string; arguments of its tool calls are objects,
// or the text of what is not an object; without calls there is no `tool_calls`, and a
// `function_call` is one. kInvalidArgument names the field: "messages[2].role".
Result<JsonValue> ReadMessage(const JsonValue& raw, size_t index, const ModelView& model,
                              MessageRoom* room);

// OpenAI's older form of an answer's call, without tool_calls.
inline constexpr std::string_view kFunctionCall = "function_call";
bool HasFunctionCall(const JsonValue& raw);

// Returns message `index`, which ReadMessage made of `raw`, in the form in which the template shows
// its calls. kInvalidArgument names arguments that are not an object, where it shows nothing else.
Result<JsonValue> InForm(const JsonValue& raw, const JsonValue& message, size_t index,
                         const TemplateForm& form, JsonTree* tree);

}  // namespace kvasir
