// From the `messages` of a chat request to the prompt's tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "api/chat_message.h"
#include "api/model_view.h"
#include "chat/chat_template.h"
#include "http/errors.h"
#include "http/json_body.h"
#include "kvasir/status.h"
#include "kvasir/types.h"
#include "text/tokenizer.h"

namespace kvasir {

// Returns the API error for text in `field` when there is no tokenizer: says why. REQUIRES: there
// is none.
Error NoTextError(const std::string& field, const ModelView& model);

// Returns the API error for an error of Tokenizer::Encode or EncodeChat, which had this limit.
Error EncodeError(const Error& error, const std::string& field, size_t most_tokens,
                  const ModelView& model);

// Validates `messages`, `tools`, `add_generation_prompt`, `continue_final_message`,
// `chat_template_name`, `chat_template_kwargs`, `drop_lines`, `move_lines` and renders them. A last
// message of the assistant is continued unless one of the second and third field is there, as
// llama-server does. kInvalidArgument names the field: "messages[2].role". `tree` gets the messages
// as the template sees them, in the template's form; it is the tree of `fields` or lives as long.
Result<RenderedChat> RenderMessages(JsonFields& fields, JsonTree* tree, const ModelView& model);

// Adds the rules that a field of the request names: `drop_lines` or `move_lines`.
// kInvalidArgument names what is not a rule's name.
Status AddRules(const char* field, JsonFields& fields, LineRules* rules);

// Returns the names of fields of a request that its prompt does not show: "tools", "messages[3]",
// "messages[1].tool_calls[0]"; the first 64, and how many more.
std::vector<std::string> PathsOf(std::span<const jinja::ChatPart> unseen);

// Returns what a tool of a request says of its function: in `function`, or itself.
const JsonValue& FunctionOf(const JsonValue& tool);
// Checks `tools`: each has a name that no other one has. Null: the request has no tools.
Result<JsonValue> ReadTools(JsonFields& fields);

// Returns the template that `chat_template_name` asks for, else the one for such a chat.
// kInvalidArgument: the model has none of this name. REQUIRES: a chat template.
Result<const ChatTemplate*> ChosenTemplate(JsonFields& fields, const ModelView& model,
                                           bool has_tools);

struct ChatPrompt {
  std::vector<TokenId> ids;
  std::vector<uint32_t> message_ends;    // for GenerateRequest::message_ends
  std::vector<uint32_t> message_begins;  // as RenderedChat::message_begin
  bool begins_with_system = false;       // as RenderedChat::begins_with_system
  PromptThought thought = PromptThought::kNone;
  std::vector<CacheMark> marks;         // as RenderedChat::marks
  CuredLines cured;                     // as RenderedChat::cured
  PromptHead head;                      // without its parts; empty without ModelView::heads
  bool clock_in_prompt = false;         // as RenderedChat::clock_in_prompt
  std::vector<jinja::ChatPart> unseen;  // as RenderedChat::unseen
  // [known]: where the ids end; absent: they were left out, or stand within others.
  std::vector<std::optional<uint32_t>> known_ends;
};

// Returns digests of the fields of a chat that its prompt depends on, but not of its model.
// O(text).
PromptHead::Parts HeadPartsOf(JsonFields fields, const HeadSpace& heads);

// Bytes [begin, end) of a chat's text that these ids stand for.
struct KnownIds {
  size_t begin, end;
  std::span<const TokenId> ids;
  ReadsBack reads_back = ReadsBack::kUnknown;
};

// Encodes a chat. Special tokens are recognised only in the text of the template. Where ids are
// `known`, in ascending order, they are the prompt's, and the text between is encoded by itself;
// unless the whole would not decode to the text of the chat, or to what the ids of all of it decode
// to where a tokenizer adds spaces: then those that read otherwise are left out, or all.
// kExhausted: the text between `known` ids has more than max_text_tokens tokens. O(text). REQUIRES:
// a tokenizer; no `ids` is empty.
Result<ChatPrompt> EncodeChat(const RenderedChat& chat, const ModelView& model,
                              std::span<const KnownIds> known = {});

// Returns where the lines of a chat's text begin (api/prompt_heads.h): a message begins a line, and
// so does what it says first, after what the template wrote. O(text).
std::vector<size_t> LineBegins(const RenderedChat& chat);

// Returns how many of a chat's tokens have text before each of these bytes of it. `text_ends`: in
// ascending order. Errors as EncodeChat's. O(text).
Result<std::vector<uint32_t>> TokensBefore(const RenderedChat& chat,
                                           std::span<const size_t> text_ends,
                                           const ModelView& model);

// Returns the ids of bytes [begin, end) of a chat, encoded by themselves. Errors as EncodeChat's.
Result<std::vector<TokenId>> EncodePart(const RenderedChat& chat, size_t begin, size_t end,
                                        const ModelView& model);

}  // namespace kvasir
