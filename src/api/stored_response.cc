#include "api/stored_response.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "api/cache_marks.h"
#include "api/session_body.h"
#include "api/session_prompt.h"
#include "base/json_writer.h"
#include "base/result.h"
#include "base/utf8.h"

namespace kvasir {
namespace {

using nlohmann::ordered_json;

// Fields of a chat completion that its prompt depends on, beside the messages.
constexpr std::string_view kPromptFields[] = {"tools", "chat_template_kwargs", "chat_template_name",
                                              "drop_lines", "move_lines"};

bool IsEqual(const SessionMessage& one, const SessionMessage& other) {
  const SessionMessage::More &more = one.more(), &others = other.more();
  return one.role == other.role && one.content == other.content && more.fields == others.fields &&
         std::ranges::equal(more.segments, others.segments, [](const auto& a, const auto& b) {
           return a.name == b.name && a.begin == b.begin && a.end == b.end;
         });
}

// Names the instructions in the first message, which begins with them.
void NameInstructions(std::string_view instructions, SessionMessage* first) {
  const auto points = static_cast<uint32_t>(
      std::ranges::count_if(instructions, [](const char c) { return !ContinuesChar(c); }));
  SessionMessage::More more;
  more.fields = first->more().fields;
  more.segments.push_back({std::string(kInstructionsPart), 0, points});
  first->SetMore(std::move(more));
}

// Returns the setup: that of the previous response where it is equal.
std::shared_ptr<const SessionSetup> SetupOf(TranslatedChat& chat, const ResponseChain& chain,
                                            std::string model) {
  auto setup = std::make_shared<SessionSetup>();
  std::vector<JsonValue::Member> kept;
  for (const std::string_view name : kPromptFields) {
    if (const JsonValue* value = chat.fields.Find(name)) kept.push_back({name, *value});
  }
  if (!kept.empty()) setup->fields = TextOf(chat.tree.Object(std::move(kept)));
  setup->model = std::move(model);
  setup->max_context = UINT32_MAX;  // the model's
  setup->drops_oldest = chain.drops_oldest;
  const JsonValue* cache = chat.fields.Find("cache");
  const JsonValue* disk = cache && cache->is_object() ? cache->Find("disk") : nullptr;
  if (disk && disk->is_bool()) setup->on_disk = disk->boolean();
  const SessionSetup* const old = chain.previous ? chain.previous->setup.get() : nullptr;
  const bool is_equal = old && old->fields == setup->fields && old->model == setup->model &&
                        old->max_context == setup->max_context &&
                        old->drops_oldest == setup->drops_oldest && old->on_disk == setup->on_disk;
  return is_equal ? chain.previous->setup : setup;
}

}  // namespace

std::optional<std::string> WithoutInstructions(const SessionMessage& first) {
  const auto& segments = first.more().segments;
  if (segments.empty() || segments.front().name != kInstructionsPart) return first.content;
  const std::optional<size_t> end = ByteOfCodePoint(first.content, segments.front().end);
  if (!end || *end >= first.content.size()) return std::nullopt;
  return first.content.substr(*end + 1);  // after the line end between them
}

namespace {

// Takes the marks from the messages of a chat: what is stored has none.
Status MoveMarks(TranslatedChat& chat) {
  JsonFields fields(chat.fields);
  KV_ASSIGN(UnmarkedMessages unmarked, TakeMarks(fields, &chat.tree));
  std::vector<JsonValue::Member> members(chat.fields.members().begin(),
                                         chat.fields.members().end());
  members.push_back({"messages", chat.tree.Array(unmarked.messages)});  // the last of equal ones
  chat.fields = chat.tree.Object(std::move(members));
  chat.marks = std::move(unmarked.marks);
  std::ranges::copy(fields.inner_unread(), std::back_inserter(chat.ignored));
  return {};
}

}  // namespace

Result<SessionState> StateOf(TranslatedChat& chat, const ResponseChain& chain,
                             const ModelView& model) {
  KV_TRY(MoveMarks(chat));
  SessionState state;
  std::string name = "default";
  const JsonValue* asked = chat.fields.Find("model");
  if (asked && asked->is_string()) name = asked->text();
  KV_ASSIGN(std::string answers_as, CheckModel(name, model));
  state.setup = SetupOf(chat, chain, std::move(answers_as));
  MessageRoom room{.tree = &chat.tree};
  const std::span<const JsonValue> messages = chat.fields.Find("messages")->items();
  const auto* const old = chain.previous ? &chain.previous->messages : nullptr;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (const auto kept = chat.names.messages[i].kept) {
      state.messages.push_back((*old)[*kept]);
      continue;
    }
    KV_ASSIGN(SessionMessage read, ReadSessionMessage(messages[i], i, model, &room));
    auto message = std::make_shared<SessionMessage>(std::move(read));
    if (i == 0 && !chain.instructions.empty()) NameInstructions(chain.instructions, message.get());
    const bool is_old = old && i < old->size() && IsEqual(*(*old)[i], *message);
    state.messages.push_back(is_old ? (*old)[i] : std::move(message));
  }
  if (!chain.previous) return state;
  if (chain.drops_oldest) state.dropped = chain.previous->dropped;
  if (state.first_shown() >= state.messages.size()) state.dropped = 0;
  state.identity_changed = chain.previous->identity_changed;
  return state;
}

Result<OpenAiCall> ReadStateChat(TranslatedChat& chat, const ModelView& model, SessionState* state,
                                 std::vector<SessionPath::Begin>* begins) {
  JsonFields fields(chat.fields);
  auto call = BeginChat(fields, model);
  if (!call) return WithItsNames(std::move(call), chat);
  if (!model.tokenizer) return tl::unexpected(NoTextError("input", model));
  auto prompt = PromptOf(*state, model);
  if (!prompt && prompt.error().field == "max_context") {
    // Said as of any other chat.
    KV_ASSIGN(call, ReadTranslated(chat, model));
    Error full{Code::kInvalidArgument, "the prompt does not fit the context", "input"};
    full.cause = Cause::kContext;
    full.excess = {.prompt_tokens = call->requests.front().prompt.size(),
                   .ctx_size = model.ctx_size};
    return tl::unexpected(std::move(full));
  }
  if (!prompt) return WithItsNames(tl::unexpected(prompt.error()), chat);
  state->dropped = prompt->dropped;
  *begins = BeginsOf(*state, prompt->chat);
  GenerateRequest& request = call->requests.front();
  request.identity_changed = state->identity_changed;
  call->spec.session = {.session = "", .index = state->messages.size(), .dropped_messages = {}};
  if (state->setup->drops_oldest) call->spec.session->dropped_messages = prompt->dropped;
  prompt->chat.marks = chat.marks;
  std::erase_if(prompt->chat.marks, [&](const CacheMark& mark) {
    return mark.message < state->first_shown() && !(mark.message == 0 && state->has_system());
  });
  for (const char* name : {"messages", "prompt_cache_options", "prompt_cache_retention"}) {
    fields.Find(name);  // and what else the rendering has read
  }
  for (const std::string_view name : kPromptFields) fields.Find(name);
  const Status set = [&]() -> Status {
    KV_TRY(SetReading(fields.Find("tools"), prompt->chat.thought, model, &*call));
    return SetPrompt(std::move(prompt->chat), fields, model, &*call);
  }();
  if (!set) return WithItsNames(tl::unexpected(set.error()), chat);
  return WithItsNames(std::move(call), chat);
}

namespace {

// Adds the items that a message is. Their ids are the places that they have in the whole list.
class StoredItems {
 public:
  explicit StoredItems(std::string_view id) : hex_(id.substr(id.find('_') + 1)) {}

  void Add(const SessionMessage& message, std::string_view content) {
    const std::string& text = message.more().fields;
    const ordered_json fields = text.empty() ? ordered_json::object() : ordered_json::parse(text);
    if (message.role == "tool") {
      Put("fco", {{"type", "function_call_output"},
                  {"call_id", fields.value("tool_call_id", "")},
                  {"output", content},
                  {"status", "completed"}});
      return;
    }
    const bool is_answer = message.role == "assistant";
    if (const std::string thought = fields.value("reasoning_content", ""); !thought.empty()) {
      Put("rs", {{"type", "reasoning"},
                 {"summary", ordered_json::array()},
                 {"content", {{{"type", "reasoning_text"}, {"text", thought}}}},
                 {"status", "completed"}});
    }
    const ordered_json calls = fields.value("tool_calls", ordered_json::array());
    if (!content.empty() || (calls.empty() && !is_answer)) {
      ordered_json part = {{"type", is_answer ? "output_text" : "input_text"}, {"text", content}};
      if (is_answer) part["annotations"] = ordered_json::array();
      Put("msg", {{"type", "message"},
                  {"role", message.role},
                  {"content", {std::move(part)}},
                  {"status", "completed"}});
    }
    for (const ordered_json& call : calls) {
      const ordered_json& function = call.at("function");
      const ordered_json& arguments = function.at("arguments");
      Put("fc", {{"type", "function_call"},
                 {"call_id", call.value("id", "")},
                 {"name", function.at("name")},
                 {"arguments", arguments.is_string() ? arguments : ordered_json(Dump(arguments))},
                 {"status", "completed"}});
    }
  }
  std::vector<ordered_json> Take() { return std::move(items_); }

 private:
  void Put(std::string_view prefix, ordered_json item) {
    item["id"] = fmt::format("{}_{}i{:05}", prefix, hex_, items_.size());
    items_.push_back(std::move(item));
  }

  const std::string hex_;
  std::vector<ordered_json> items_;
};

}  // namespace

Result<std::string> InputItems(std::string_view id, const SessionState& state,
                               const ItemPage& page) {
  StoredItems made(id);
  for (size_t i = 0; i + 1 < state.messages.size(); ++i) {  // the last one is the answer
    const SessionMessage& message = *state.messages[i];
    if (i > 0) {
      made.Add(message, message.content);
    } else if (const auto rest = WithoutInstructions(message)) {
      made.Add(message, *rest);
    }
  }
  std::vector<ordered_json> items = made.Take();
  if (!page.is_ascending) std::ranges::reverse(items);
  size_t first = 0;
  if (!page.after.empty()) {
    const auto at = std::ranges::find_if(
        items, [&](const ordered_json& item) { return item.at("id") == page.after; });
    if (at == items.end()) {
      return FailField(Code::kNotFound, "after", "the response has no input item of this id");
    }
    first = static_cast<size_t>(at - items.begin()) + 1;
  }
  const size_t end = std::min(items.size(), first + page.limit);
  ordered_json data = ordered_json::array();
  for (size_t i = first; i < end; ++i) data.push_back(std::move(items[i]));
  const auto id_of = [&](const ordered_json& item) { return item.at("id"); };
  const ordered_json list = {{"object", "list"},
                             {"first_id", data.empty() ? ordered_json() : id_of(data.front())},
                             {"last_id", data.empty() ? ordered_json() : id_of(data.back())},
                             {"has_more", end < items.size()},
                             {"data", std::move(data)}};
  return Dump(list);
}

}  // namespace kvasir
