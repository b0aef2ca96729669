#include "api/session_body.h"

#include <fmt/format.h>

#include <algorithm>

#include "api/openai_request.h"
#include "api/request_limits.h"
#include "base/chat_roles.h"
#include "base/result.h"
#include "chat/answer_grammar.h"

namespace kvasir {
namespace {

using Member = JsonValue::Member;

// Fields of a chat completion that a session has for itself.
constexpr std::string_view kNotSampling[] = {"messages",
                                             "model",
                                             "tools",
                                             "chat_template_kwargs",
                                             "drop_lines",
                                             "move_lines",
                                             "add_generation_prompt",
                                             "documents",
                                             "continue_final_message",
                                             "chat_template_name"};

Result<MessageSegment> Segment(const JsonValue& raw, const std::string& path,
                               std::vector<std::string>* unread) {
  if (!raw.is_object()) {
    return FailField(Code::kInvalidArgument, path, "is {}, not an object", KindOf(raw));
  }
  JsonFields fields(raw, path + ".");
  MessageSegment segment;
  fields.String("name", &segment.name);
  fields.Unsigned("begin", 0, UINT32_MAX, &segment.begin);
  fields.Unsigned("end", 0, UINT32_MAX, &segment.end);
  for (const char* name : {"name", "begin", "end"}) {
    if (!fields.Has(name)) fields.Fail(name, "is missing");
  }
  if (segment.name.empty() || segment.name.size() > kMaxSegmentNameBytes) {
    fields.Fail("name", fmt::format("has {} bytes; give 1 to {}", segment.name.size(),
                                    kMaxSegmentNameBytes));
  }
  if (fields.error()) return tl::unexpected(*fields.error());
  for (const std::string& name : fields.Unread()) unread->push_back(path + "." + name);
  return segment;
}

Result<std::vector<MessageSegment>> Segments(JsonFields& fields, const std::string& path,
                                             std::string_view content,
                                             std::vector<std::string>* unread) {
  const JsonValue* raw = fields.Find("segments");
  if (!raw) return std::vector<MessageSegment>();
  const std::string list = path + "segments";
  if (!raw->is_array()) {
    return FailField(Code::kInvalidArgument, list, "is {}, not an array", KindOf(*raw));
  }
  if (raw->size() > kMaxSegments) {
    return FailField(Code::kInvalidArgument, list, "has {} segments; at most {} are allowed",
                     raw->size(), kMaxSegments);
  }
  std::vector<MessageSegment> segments;
  segments.reserve(raw->size());
  for (const JsonValue& one : raw->items()) {
    const std::string place = fmt::format("{}[{}]", list, segments.size());
    KV_ASSIGN(MessageSegment segment, Segment(one, place, unread));
    segments.push_back(std::move(segment));
  }
  auto ordered = OrderSegments(std::move(segments), content);
  if (!ordered) return FailField(Code::kInvalidArgument, list, "{}", ordered.error().message);
  return std::move(*ordered);
}

Status CheckMetadata(const JsonValue& metadata) {
  if (!metadata.is_object()) {
    return FailField(Code::kInvalidArgument, "metadata", "is {}, not an object", KindOf(metadata));
  }
  if (metadata.size() > kMaxMetadata) {
    return FailField(Code::kInvalidArgument, "metadata", "has {} keys; at most {} are allowed",
                     metadata.size(), kMaxMetadata);
  }
  for (const auto& [key, value] : metadata.members()) {
    if (key.size() <= kMaxMetadataKey && value.is_string() && value.size() <= kMaxMetadataValue) {
      continue;
    }
    return FailField(Code::kInvalidArgument, "metadata",
                     "has a key of more than {} bytes, or a value that is not a text of at most {}",
                     kMaxMetadataKey, kMaxMetadataValue);
  }
  return {};
}

// Checks that defaults of generate are what generate takes.
Status CheckSampling(const JsonValue& sampling, const ModelView& model, JsonFields* body) {
  if (!sampling.is_object()) {
    return FailField(Code::kInvalidArgument, "sampling", "is {}, not an object", KindOf(sampling));
  }
  JsonFields fields(sampling, "sampling.");
  for (const std::string_view name : kNotSampling) {
    if (fields.Has(name)) fields.Fail(name, "is a field of the session, not of its sampling");
  }
  auto call = BeginChat(fields, model);
  if (!call) return tl::unexpected(call.error());
  if (call->spec.n != 1) fields.Fail("n", "a session has one answer to a message: n is 1");
  const auto& format = call->requests.front().format;
  if (format && !fields.error()) {
    const auto compiled = CompileAnswer(*format, AnswerPart::kWhole, /*dropped_spaces=*/0);
    if (!compiled) {
      fields.Fail(compiled.error().field.value_or("format"), compiled.error().message);
    }
  }
  if (fields.error()) return tl::unexpected(*fields.error());
  body->TakeUnread(fields);
  return {};
}

// Reads tools, template variables and cache as one object.
Result<std::string> PromptFields(JsonFields& fields, const ModelView& model, JsonTree* tree) {
  std::vector<Member> kept;
  KV_ASSIGN(const JsonValue tools, ReadTools(fields));
  if (!tools.is_null()) kept.push_back({"tools", tools});
  for (const char* name : {"chat_template_kwargs", "cache"}) {
    const JsonValue* value = fields.Find(name);
    if (!value) continue;
    if (!value->is_object()) {
      return FailField(Code::kInvalidArgument, name, "is {}, not an object", KindOf(*value));
    }
    kept.push_back({name, *value});
  }
  if (const JsonValue* name = fields.Find("chat_template_name")) {
    if (model.chat_template) KV_TRY(ChosenTemplate(fields, model, !tools.is_null()));
    kept.push_back({"chat_template_name", *name});
  }
  for (const char* name : {"drop_lines", "move_lines"}) {
    const JsonValue* value = fields.Find(name);
    LineRules rules;
    KV_TRY(AddRules(name, fields, &rules));
    if (value) kept.push_back({name, *value});
  }
  if (kept.empty()) return std::string();
  return TextOf(tree->Object(std::move(kept)));
}

// Reads one of two texts; returns whether it is the second one.
bool ReadChoice(JsonFields& fields, const char* name, std::string_view first,
                std::string_view second) {
  std::string text(first);
  fields.String(name, &text);
  if (text != first && text != second) {
    fields.Refuse(name, fmt::format("\"{}\" or \"{}\"", first, second));
  }
  return text == second;
}

}  // namespace

Result<SessionMessage> ReadSessionMessage(const JsonValue& raw, size_t index,
                                          const ModelView& model, MessageRoom* room) {
  KV_ASSIGN(const JsonValue read, ReadMessage(raw, index, model, room));
  JsonTree* const tree = room->tree;
  const std::string path = fmt::format("messages[{}].", index);
  JsonFields fields(raw, path);
  SessionMessage message;
  const std::string_view role = raw.Find("role")->text();
  message.role = role == kFunctionRole ? "tool" : role;
  message.content = std::string(read.Find("content")->text());
  SessionMessage::More more;
  KV_ASSIGN(more.segments, Segments(fields, path, message.content, &room->unread));
  std::vector<Member> members;
  bool has_more = false, has_content = false;
  for (const Member& member : raw.members()) {
    if (member.key == "segments") continue;
    const bool is_content = member.key == "content";
    members.push_back({member.key, is_content ? tree->String("") : member.value});
    has_content |= is_content;
    has_more |= !is_content && member.key != "role";
  }
  if (!has_content) members.push_back({"content", tree->String("")});
  if (has_more) more.fields = TextOf(tree->Object(std::move(members)));
  message.SetMore(std::move(more));
  return message;
}

Result<std::vector<SessionMessage>> ReadSessionMessages(JsonFields& fields, const ModelView& model,
                                                        JsonTree* tree) {
  std::vector<SessionMessage> messages;
  const JsonValue* list = fields.Find("messages");
  if (!list) return messages;
  if (!list->is_array()) {
    return FailField(Code::kInvalidArgument, "messages", "is {}, not an array", KindOf(*list));
  }
  MessageRoom room{.tree = tree};
  messages.reserve(list->size());
  for (const JsonValue& raw : list->items()) {
    KV_ASSIGN(SessionMessage message, ReadSessionMessage(raw, messages.size(), model, &room));
    messages.push_back(std::move(message));
  }
  fields.TakeUnread(room.unread);
  return messages;
}

Result<SessionMessage> ReadContent(JsonFields& fields, std::string_view role,
                                   const ModelView& model, JsonTree* tree) {
  const JsonValue* content = fields.Find("content");
  if (!content) return FailField(Code::kInvalidArgument, "content", "is missing");
  const JsonValue raw = tree->Object({{"role", tree->String(role)}, {"content", *content}});
  MessageRoom room{.tree = tree};
  auto read = ReadMessage(raw, 0, model, &room);
  if (!read) return FailField(Code::kInvalidArgument, "content", "{}", read.error().message);
  SessionMessage message;
  message.role = role;
  message.content = std::string(read->Find("content")->text());
  SessionMessage::More more;
  constexpr std::string_view kPlace = "messages[0].";  // the place that ReadMessage names
  std::vector<std::string> unread;
  for (const std::string& path : room.unread) unread.push_back(path.substr(kPlace.size()));
  KV_ASSIGN(more.segments, Segments(fields, "", message.content, &unread));
  fields.TakeUnread(unread);
  message.SetMore(std::move(more));
  return message;
}

Result<SessionSetup> ReadSetup(JsonFields& fields, const ModelView& model, JsonTree* tree) {
  SessionSetup setup;
  std::string name = "default";
  fields.String("model", &name);
  if (fields.error()) return tl::unexpected(*fields.error());
  KV_ASSIGN(setup.model, CheckModel(name, model));
  KV_ASSIGN(setup.fields, PromptFields(fields, model, tree));
  if (const JsonValue* sampling = fields.Find("sampling")) {
    KV_TRY(CheckSampling(*sampling, model, &fields));
    setup.sampling = TextOf(*sampling);
  }
  if (const JsonValue* metadata = fields.Find("metadata")) {
    KV_TRY(CheckMetadata(*metadata));
    setup.metadata = TextOf(*metadata);
  }
  setup.max_context = model.ctx_size;
  fields.Unsigned("max_context", 1, model.ctx_size, &setup.max_context);
  setup.drops_oldest = ReadChoice(fields, "on_full", "reject", "drop_oldest_turns");
  setup.exact_ids = !ReadChoice(fields, "ids", "exact", "canonical");
  fields.Bool("prepare", &setup.prepare);
  fields.String("origin", &setup.origin);
  if (setup.origin.empty() || setup.origin.size() > kMaxOriginBytes) {
    fields.Fail("origin",
                fmt::format("has {} bytes; give 1 to {}", setup.origin.size(), kMaxOriginBytes));
  }
  GenerateRequest run;  // of what generate would refuse
  ReadCache(fields, &run);
  setup.on_disk = run.use_disk;
  if (fields.error()) return tl::unexpected(*fields.error());
  return setup;
}

Result<std::vector<SessionMessage>> ReadFirstMessages(JsonFields& fields, const ModelView& model,
                                                      JsonTree* tree) {
  KV_ASSIGN(std::vector<SessionMessage> messages, ReadSessionMessages(fields, model, tree));
  const JsonValue* system = fields.Find("system");
  if (!system) return messages;
  if (!system->is_string()) {
    return FailField(Code::kInvalidArgument, "system", "is {}, not a string", KindOf(*system));
  }
  if (!messages.empty() &&
      (messages.front().role == "system" || messages.front().role == "developer")) {
    return FailField(Code::kInvalidArgument, "system", "messages[0] is a system message already");
  }
  std::vector<SessionMessage> all;
  all.reserve(messages.size() + 1);
  SessionMessage& first = all.emplace_back();
  first.role = "system";
  first.content = std::string(system->text());
  for (SessionMessage& message : messages) all.push_back(std::move(message));
  return all;
}

Result<JsonValue> JsonOf(const SessionMessage& message, JsonTree* tree) {
  const JsonValue content = tree->String(message.content);
  if (message.more().fields.empty()) {
    return tree->Object({{"role", tree->String(message.role)}, {"content", content}});
  }
  KV_ASSIGN(std::vector<Member> members, MembersOf(message.more().fields, tree));
  members.push_back({"content", content});  // the last one of equal keys counts
  return tree->Object(std::move(members));
}

Result<std::vector<Member>> MembersOf(std::string_view object, JsonTree* tree, IdFields id_fields) {
  if (object.empty()) return std::vector<Member>();
  size_t values_left = kMaxJsonValues;
  KV_ASSIGN(const JsonValue value, ParseObject(object, id_fields, &values_left, tree));
  return std::vector<Member>(value.members().begin(), value.members().end());
}

}  // namespace kvasir
