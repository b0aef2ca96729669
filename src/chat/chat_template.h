// Chat templates: render messages to the text format that a model was trained on.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json_tree.h"
#include "chat/template_form.h"
#include "jinja/chat_part.h"
#include "kvasir/receipt.h"
#include "kvasir/status.h"

namespace kvasir {

// The prompt is kept longer than others, up to the end of a message.
struct CacheMark {
  uint32_t message = 0;
  uint32_t ttl_s = 0;  // since its last use
};

// Rendered text, and which bytes of it come from users. Bytes outside `literal` come from the
// template.
struct RenderedChat {
  std::string text;
  std::vector<std::pair<size_t, size_t>> literal;  // ascending byte ranges, for EncodeOptions
  // message_end[i]: byte offset where message i's contribution ends (the first byte of the next
  // message's), ascending; text after the last one is the generation prompt.
  std::vector<size_t> message_end;
  // message_begin[i]: no text of messages i and later stands before it. message_end[i - 1], or less
  // where the template writes a message after later ones (the system message in the last turn).
  std::vector<size_t> message_begin;
  // What the chat says and the text does not show, in the order of the chat; tools first, variables
  // last.
  std::vector<jinja::ChatPart> unseen;
  bool clock_in_prompt = false;  // the template asked for the date, and the machine's clock told it
  std::vector<CacheMark> marks;  // of the messages, in their order
  CuredLines cured;              // of the messages, before the template wrote them
  bool begins_with_system = false;  // message 0 is the system's, or the developer's
  bool is_continued = false;  // it ends inside the last message (ChatRenderOptions::continues)
  // What the template may write in any chat, for EncodeOptions: its source, and what it wrote in a
  // few small chats. Shared, since a chat may outlive its template.
  std::shared_ptr<const std::string> written;
  // The most tokens that its prompt may have, where they are more than usual (api/model_view.h).
  std::optional<size_t> max_tokens = {};
};

// A text of the last message that the answer goes on with.
enum class Continued : uint8_t { kContent, kReasoningContent };

struct ChatRenderOptions {
  bool add_generation_prompt = true;
  std::string bos_token, eos_token;  // "": undefined in the template
  int64_t now_unix_s = 0;            // for strftime_now; 0: the clock of the machine
  // The rendering ends where the last message's text does, in the place of a generation prompt: as
  // transformers' continue_final_message, byte for byte. Spaces at its end stay, unless the
  // template takes them away.
  std::optional<Continued> continues = {};
  // Steps at most (jinja::Limits), where the size of the input allows more.
  uint64_t max_steps = std::numeric_limits<uint64_t>::max();
};

// max_steps of chats that are only tried: a template takes some thousands of steps for a small
// chat, and one that has no end would hold up a start for half a minute.
inline constexpr uint64_t kTriedSteps = 200'000;

// A parsed template in the Jinja that transformers renders with: trim_blocks, lstrip_blocks, the
// loop controls, an immutable sandbox, its tojson, raise_exception, strftime_now and generation
// blocks. The text is byte for byte the same.
//
// Bytes from messages (except a role that the API knows), tools or variables are literal, whatever
// the template does with them; so is text made from their numbers. Values that a template computes
// itself (loop.index, a length) are template text.
//
// A byte belongs to a message if it comes from it, or was written in an iteration of a loop over
// messages (or over indexes, from the first messages[i] on). Message i begins at the first byte of
// message i or a later one, not before the end of the first literal bytes of message i-1.
//
// A template is untrusted: rendering ends with an error after a number of steps that is
// proportional to the size of its input (jinja::Limits). Steps also limit the text built and the
// depth of calls. Immutable; thread-safe.
class ChatTemplate {
 public:
  // kInvalidArgument with line and column on a syntax error; kUnsupported names a construct that
  // the interpreter does not know.
  static Result<std::unique_ptr<ChatTemplate>> Parse(std::string_view source);
  // Parses with the model's templates of other names; their errors say the name.
  static Result<std::unique_ptr<ChatTemplate>> Parse(
      std::string_view source, const std::map<std::string, std::string>& named);
  virtual ~ChatTemplate() = default;

  // Returns the template for a chat: of this name ("default": this one); without a name "tool_use"
  // where tools are given, else this one. Null: the model has none of this name.
  virtual const ChatTemplate* Choose(const std::optional<std::string>& name,
                                     bool has_tools) const = 0;
  virtual std::vector<std::string> names() const = 0;  // "default" first

  virtual const std::string& source() const = 0;  // with \n for every kind of line end
  virtual const TemplateForm& form() const = 0;   // of this template, not of those of other names

  // Renders a chat. messages: array of objects {role, content, ...} (content: string); tools: array
  // or null; variables: more template variables (chat_template_kwargs), object or null. Templates
  // see the keys of objects in their original order, because models are trained on that order.
  // Errors: kInvalidArgument with the template's raise_exception message, or with another problem;
  // of the field "messages" with an index where the template was at one message. O(size of the
  // arguments).
  virtual Result<RenderedChat> Render(const JsonValue& messages, const JsonValue& tools,
                                      const JsonValue& variables,
                                      const ChatRenderOptions& options) const = 0;
};

// Returns the template variables from the JSON text of an object; null of "". kInvalidArgument: it
// is not one.
Result<JsonValue> ParseVariables(std::string_view text, JsonTree* tree);

// Returns the sources of a template and of those of other names.
std::string AllSources(const ChatTemplate& chat_template);

}  // namespace kvasir
