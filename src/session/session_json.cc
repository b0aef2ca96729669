// The JSON of a session (docs/formats/sessions.md).
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "base/chat_roles.h"
#include "base/json_writer.h"
#include "base/result.h"
#include "base/sizes.h"
#include "base/wipe.h"
#include "kvasir/session_file.h"

namespace kvasir {
namespace {

using nlohmann::ordered_json;

constexpr int kRecordVersion = 1;

ordered_json JsonOf(const SessionMessage& message) {
  ordered_json body = {{"number", message.number},
                       {"version", message.version},
                       {"role", message.role},
                       {"content", message.content}};
  const SessionMessage::More& more = message.more();
  if (!more.fields.empty()) body["fields"] = more.fields;
  for (const MessageSegment& segment : more.segments) {
    body["segments"].push_back(
        {{"name", segment.name}, {"begin", segment.begin}, {"end", segment.end}});
  }
  if (!message.generated) return body;
  body["generated"] = true;
  if (!more.written.empty()) body["written"] = more.written;
  body["ids"] = message.ids;
  body["ids_bytes"] = message.ids_bytes;
  return body;
}

ordered_json JsonOf(const SessionPath& path) {
  ordered_json begins = ordered_json::array();
  for (const SessionPath::Begin& begin : path.begins) {
    begins.push_back({begin.number, begin.version, begin.at});
    if (begin.is_system) begins.back().push_back(1);
  }
  ordered_json body = {{"parent", path.parent},
                       {"shared", path.shared},
                       {"ids", path.ids},
                       {"begins", std::move(begins)}};
  if (path.cut_at) body["cut_at"] = *path.cut_at;
  if (path.space.owner) body["cache_owner"] = *path.space.owner;
  if (path.space.salt) body["cache_salt"] = *path.space.salt;
  if (!path.space.adapters.empty()) body["adapters"] = path.space.adapters;
  return body;
}

// Reads members of an object; the first wrong one is the error.
class SessionRecordReader {
 public:
  SessionRecordReader(const ordered_json& object, std::string place)
      : object_(object), place_(std::move(place)) {
    if (!object.is_object()) Wrong("", "is not an object");
  }

  SessionRecordReader& Text(const char* name, std::string* to) {
    const ordered_json* value = Find(name);
    if (value && !value->is_string()) Wrong(name, "is not a text");
    if (ok() && value) *to = value->get<std::string>();
    return *this;
  }
  // Reads a text that is "" or a JSON object.
  SessionRecordReader& Object(const char* name, std::string* to) {
    Text(name, to);
    if (!ok() || to->empty()) return *this;
    const ordered_json parsed = ordered_json::parse(*to, nullptr, false);
    if (!parsed.is_object()) Wrong(name, "is not the text of a JSON object");
    return *this;
  }
  SessionRecordReader& Flag(const char* name, bool* to) {
    const ordered_json* value = Find(name);
    if (value && !value->is_boolean()) Wrong(name, "is not true or false");
    if (ok() && value) *to = value->get<bool>();
    return *this;
  }
  template <typename Number>
  SessionRecordReader& Count(const char* name, Number* to) {
    const ordered_json* value = Find(name);
    if (value && !Fits<Number>(*value)) Wrong(name, "is not a number, or too large");
    if (ok() && value) *to = static_cast<Number>(value->get<uint64_t>());
    return *this;
  }
  SessionRecordReader& Ids(const char* name, std::vector<TokenId>* to) {
    const ordered_json* value = Find(name);
    if (value && !value->is_array()) Wrong(name, "is not an array");
    if (!ok() || !value) return *this;
    to->reserve(value->size());
    for (const ordered_json& id : *value) {
      if (!Fits<TokenId>(id)) return Wrong(name, "has an id that is not a number, or too large");
      to->push_back(id.get<TokenId>());
    }
    return *this;
  }
  // Calls `each` with the elements of an array, and where they are.
  template <typename Each>
  SessionRecordReader& Array(const char* name, const Each& each) {
    const ordered_json* value = Find(name);
    if (value && !value->is_array()) Wrong(name, "is not an array");
    if (!ok() || !value) return *this;
    for (size_t i = 0; i < value->size() && ok(); ++i) {
      const Status read = each((*value)[i], fmt::format("{}{}[{}]", place_, name, i));
      if (!read) error_ = read.error();
    }
    return *this;
  }
  SessionRecordReader& Wrong(std::string_view name, std::string_view why) {
    if (ok()) error_ = {Code::kInvalidArgument, fmt::format("session: {}{} {}", place_, name, why)};
    return *this;
  }
  // Refuses a record of a version that this one does not know.
  SessionRecordReader& OfNewer(uint64_t version) {
    if (ok()) {
      error_ = {Code::kUnsupported,
                fmt::format("is of version {} of its format, which a newer Kvasir wrote; this one "
                            "reads version {}",
                            version, kRecordVersion)};
    }
    return *this;
  }
  template <typename Number>
  static bool Fits(const ordered_json& value) {
    return value.is_number_unsigned() &&
           value.get<uint64_t>() <= std::numeric_limits<Number>::max();
  }

  bool Has(const char* name) const { return Find(name) != nullptr; }
  bool ok() const { return !error_; }
  Status status() const { return error_ ? Status(tl::unexpected(*error_)) : Status(); }

 private:
  const ordered_json* Find(const char* name) const {
    if (!ok()) return nullptr;
    const auto it = object_.find(name);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }

  const ordered_json& object_;
  const std::string place_;
  std::optional<Error> error_;
};

// Numbers of this process for those of the record.
class Numbers {
 public:
  uint64_t Of(uint64_t kept) {
    const auto [it, is_new] = numbers_.try_emplace(kept, 0);
    if (is_new) it->second = SessionMessage::NewNumber();
    return it->second;
  }

 private:
  std::unordered_map<uint64_t, uint64_t> numbers_;
};

Status ReadMessage(const ordered_json& json, const std::string& place, Numbers& numbers,
                   SessionMessage* message) {
  uint64_t number = 0, version = 0;
  SessionMessage::More more;
  SessionRecordReader reader(json, place + ".");
  reader.Count("number", &number).Count("version", &version).Text("role", &message->role);
  reader.Text("content", &message->content).Object("fields", &more.fields);
  reader.Flag("generated", &message->generated).Ids("ids", &message->ids);
  reader.Count("ids_bytes", &message->ids_bytes).Text("written", &more.written);
  reader.Array("segments", [&](const ordered_json& one, const std::string& at) {
    MessageSegment segment;
    SessionRecordReader inner(one, at + ".");
    inner.Text("name", &segment.name).Count("begin", &segment.begin).Count("end", &segment.end);
    more.segments.push_back(std::move(segment));
    return inner.status();
  });
  if (!IsChatRole(message->role)) {
    reader.Wrong("role", "is not system, developer, user, assistant or tool");
  }
  const std::string& text = more.written.empty() ? message->content : more.written;
  if (message->ids_bytes > text.size()) {
    reader.Wrong("ids_bytes", "is more than its text has");
  }
  KV_TRY(reader.status());
  KV_ASSIGN(more.segments, OrderSegments(std::move(more.segments), message->content));
  message->SetMore(std::move(more));
  message->number = numbers.Of(number);
  message->version = numbers.Of(version);
  return {};
}

// `before`: how many ids each earlier path has.
Status ReadPath(const ordered_json& json, const std::string& place, Numbers& numbers,
                const std::vector<size_t>& before, SessionPath* path) {
  SessionRecordReader reader(json, place + ".");
  std::string owner, salt;
  uint32_t cut_at = 0;
  reader.Count("parent", &path->parent).Count("shared", &path->shared).Ids("ids", &path->ids);
  reader.Array("begins", [&](const ordered_json& one, const std::string& at) -> Status {
    const bool is_whole = one.is_array() && (one.size() == 3 || one.size() == 4) &&
                          std::ranges::all_of(one, [](const ordered_json& value) {
                            return SessionRecordReader::Fits<uint64_t>(value);
                          });
    if (!is_whole || !SessionRecordReader::Fits<uint32_t>(one[2])) {
      return Fail(Code::kInvalidArgument, "session: {} is not three or four numbers", at);
    }
    path->begins.push_back({numbers.Of(one[0].get<uint64_t>()), numbers.Of(one[1].get<uint64_t>()),
                            one[2].get<uint32_t>(), one.size() == 4});
    return {};
  });
  reader.Count("cut_at", &cut_at).Text("cache_owner", &owner).Text("cache_salt", &salt);
  reader.Text("adapters", &path->space.adapters);
  if (!owner.empty()) path->space.owner = std::move(owner);
  if (json.is_object() && json.contains("cache_salt")) path->space.salt = std::move(salt);
  if (reader.Has("cut_at")) path->cut_at = cut_at;
  if (path->shared > 0 && (path->parent >= before.size() || path->shared > before[path->parent])) {
    reader.Wrong("shared", "is more ids than an earlier path has");
  }
  if (path->ids.size() > UINT32_MAX - path->shared) reader.Wrong("ids", "has too many");
  for (const SessionPath::Begin& begin : path->begins) {
    if (begin.at > path->shared + path->ids.size()) reader.Wrong("begins", "is outside its ids");
  }
  if (path->cut_at >= path->shared + path->ids.size()) reader.Wrong("cut_at", "is outside its ids");
  return reader.status();
}

}  // namespace

std::string ToJson(const SessionRecord& record) {
  const SessionState& state = record.state;
  const SessionSetup& setup = *state.setup;
  ordered_json body = {{"kvasir_session", kRecordVersion},
                       {"id", record.id},
                       {"tenant", record.tenant},
                       {"created", record.created_s},
                       {"content", record.identity.content},
                       {"kv_format", record.identity.kv_format},
                       {"model", setup.model},
                       {"max_context", setup.max_context},
                       {"drops_oldest", setup.drops_oldest},
                       {"prepare", setup.prepare},
                       {"exact_ids", setup.exact_ids},
                       {"fields", setup.fields},
                       {"sampling", setup.sampling},
                       {"metadata", setup.metadata},
                       {"origin", setup.origin},
                       {"dropped", state.dropped},
                       {"tokens", state.tokens ? ordered_json(*state.tokens) : ordered_json()},
                       {"num_messages", state.messages.size()},
                       {"title", TitleOf(state)},
                       {"messages", ordered_json::array()},
                       {"paths", ordered_json::array()}};
  for (const auto& message : state.messages) body["messages"].push_back(JsonOf(*message));
  if (state.response) body["response"] = state.response->json;
  for (const auto& path : state.paths) body["paths"].push_back(JsonOf(*path));
  return Dump(body);
}

namespace {

// Where the messages begin that ToJson wrote. A text before them has no quote without a backslash.
constexpr std::string_view kMessages = R"(,"messages":[)";

void ReadHeadOf(const ordered_json& body, SessionRecordReader& reader, SessionHead* head) {
  SessionSetup& setup = head->setup;
  uint64_t version = 0, created = 0;
  uint32_t tokens = 0;
  reader.Count("kvasir_session", &version);
  if (version > kRecordVersion) reader.OfNewer(version);
  if (version != kRecordVersion) reader.Wrong("kvasir_session", "is not 1, the version it reads");
  reader.Text("id", &head->id).Text("tenant", &head->tenant).Count("created", &created);
  reader.Text("content", &head->identity.content).Text("kv_format", &head->identity.kv_format);
  reader.Text("model", &setup.model).Count("max_context", &setup.max_context);
  reader.Flag("drops_oldest", &setup.drops_oldest).Flag("prepare", &setup.prepare);
  reader.Flag("exact_ids", &setup.exact_ids).Object("fields", &setup.fields);
  reader.Object("sampling", &setup.sampling).Object("metadata", &setup.metadata);
  reader.Text("origin", &setup.origin).Text("title", &head->title);
  reader.Count("num_messages", &head->num_messages).Count("tokens", &tokens);
  head->created_s = static_cast<int64_t>(std::min<uint64_t>(created, INT64_MAX));
  if (body.contains("tokens") && !body["tokens"].is_null()) head->tokens = tokens;
}

}  // namespace

Result<SessionHead> ParseSessionHead(std::string_view json) {
  const size_t messages = json.find(kMessages);
  std::string before(json.substr(0, std::min(messages, json.size())));
  if (messages != json.npos) before += '}';
  ordered_json body = ordered_json::parse(before, nullptr, false);
  Wipe(&before);
  if (!body.contains("num_messages")) {
    body = ordered_json::parse(json, nullptr, false);
    if (body.is_object()) body["num_messages"] = body["messages"].size();
  }
  if (body.is_discarded()) return Fail(Code::kInvalidArgument, "session: is not JSON");
  SessionHead head;
  SessionRecordReader reader(body, "");
  ReadHeadOf(body, reader, &head);
  KV_TRY(reader.status());
  return head;
}

Result<SessionRecord> ParseSessionRecord(SessionStore& store, std::string_view json) {
  const ordered_json body = ordered_json::parse(json, nullptr, false);
  if (body.is_discarded()) return Fail(Code::kInvalidArgument, "session: is not JSON");
  SessionHead head;
  SessionRecord record;
  SessionState& state = record.state;
  Numbers numbers;
  SessionRecordReader reader(body, "");
  ReadHeadOf(body, reader, &head);
  record.id = std::move(head.id);
  record.tenant = std::move(head.tenant);
  record.created_s = head.created_s;
  record.identity = std::move(head.identity);
  reader.Count("dropped", &state.dropped);
  reader.Array("messages", [&](const ordered_json& one, const std::string& place) -> Status {
    SessionMessage message;
    KV_TRY(ReadMessage(one, place, numbers, &message));
    KV_ASSIGN(state.messages.emplace_back(), store.Keep(std::move(message)));
    return {};
  });
  ResponseBody response;
  reader.Object("response", &response.json);
  std::vector<size_t> lengths;
  reader.Array("paths", [&](const ordered_json& one, const std::string& place) -> Status {
    SessionPath path;
    KV_TRY(ReadPath(one, place, numbers, lengths, &path));
    lengths.push_back(path.shared + path.ids.size());
    KV_ASSIGN(state.paths.emplace_back(), store.Keep(std::move(path)));
    return {};
  });
  KV_TRY(reader.status());
  state.tokens = head.tokens;
  if (state.dropped > 0 && state.first_shown() >= state.messages.size()) {
    return Fail(Code::kInvalidArgument,
                "session: `dropped` is {}, but it has {}; at least one must stay beside "
                "the system message",
                state.dropped, CountText(state.messages.size(), "message"));
  }
  KV_ASSIGN(state.setup, store.Keep(std::move(head.setup)));
  if (!response.json.empty()) {
    KV_ASSIGN(state.response, store.Keep(std::move(response)));
  }
  return record;
}

}  // namespace kvasir
