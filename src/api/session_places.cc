#include "api/session_places.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/file_name.h"
#include "base/result.h"
#include "base/sizes.h"
#include "http/json_body.h"

namespace kvasir {

Result<uint64_t> ReadCount(std::string_view body, std::optional<uint64_t> all, bool* forget,
                           std::vector<std::string>* ignored) {
  KV_ASSIGN(const JsonBody parsed, ParseBody(body.empty() && all ? "{}" : body));
  JsonFields fields(parsed.fields);
  const auto count = fields.Integer("messages", 0, INT64_MAX);
  if (!count && !all) fields.Fail("messages", "is missing: how many messages stay");
  if (forget != nullptr) fields.Bool("forget", forget);
  if (fields.error()) return tl::unexpected(*fields.error());
  *ignored = fields.Unread();
  return count ? static_cast<uint64_t>(*count) : *all;
}

namespace {

// Says which indices name a message.
std::string IndicesText(size_t messages) {
  if (messages == 0) return "the session has no messages";
  return fmt::format("the session has {}: 0 to {}, or from its end -1 to -{}",
                     CountText(messages, "message"), messages - 1, messages);
}

// Returns the message that an index names: -1 is the last one.
Result<size_t> MessageAt(const SessionState& state, const char* field, int64_t index) {
  const auto messages = static_cast<int64_t>(state.messages.size());
  const int64_t at = index < 0 ? index + messages : index;
  if (at >= 0 && at < messages) return static_cast<size_t>(at);
  return FailField(Code::kInvalidArgument, field, "{} names no message; {}", index,
                   IndicesText(state.messages.size()));
}

// Each field of a forget, and the one that it needs or that names the form.
constexpr std::pair<const char*, const char*> kForms[] = {
    {"segment", "segment"}, {"last", "last"}, {"index", "index"}, {"begin", "index"},
    {"end", "index"},       {"from", "from"}, {"to", "from"}};
constexpr const char* kForgetForms =
    R"(is missing; give {"last": 1} for the last turn, {"index": -1} for a message (with "begin" and )"
    R"("end" for a part of it, or {"segment": "NAME"}), or {"from": 3, "to": 4} for messages)";

Result<NamedText> ReadPart(JsonFields& fields, const SessionState& state, int64_t index) {
  uint32_t begin = 0, end = 0;
  fields.Unsigned("begin", 0, UINT32_MAX, &begin);
  fields.Unsigned("end", 0, UINT32_MAX, &end);
  const bool has_begin = fields.Has("begin"), has_end = fields.Has("end");
  if (has_begin != has_end) fields.Fail(has_begin ? "end" : "begin", "is missing");
  if (fields.error()) return tl::unexpected(*fields.error());
  KV_ASSIGN(const size_t at, MessageAt(state, "index", index));
  if (has_end) return SessionPart{at, begin, end};
  return MessageRange{at, at + 1};
}

Result<NamedText> ReadRange(const SessionState& state, int64_t from, int64_t to) {
  KV_ASSIGN(const size_t first, MessageAt(state, "from", from));
  KV_ASSIGN(const size_t last, MessageAt(state, "to", to));
  if (first <= last) return MessageRange{first, last + 1};
  return FailField(Code::kInvalidArgument, "to", "message {} comes before `from`, message {}", last,
                   first);
}

}  // namespace

Result<size_t> ReadIndex(std::string_view text, const SessionState& state) {
  int64_t index = 0;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, index);
  if (error == std::errc() && at == end) return MessageAt(state, "index", index);
  return FailField(Code::kInvalidArgument, "index", "'{}' is not the index of a message; {}",
                   Printable(text), IndicesText(state.messages.size()));
}

Result<NamedText> ReadForget(std::string_view body, const SessionState& state) {
  KV_ASSIGN(const JsonBody parsed, ParseBody(body.empty() ? "{}" : body));
  JsonFields fields(parsed.fields);
  const auto integer = [&](const char* name) { return fields.Integer(name, INT64_MIN, INT64_MAX); };
  std::string segment;
  fields.String("segment", &segment);
  const auto last = fields.Integer("last", 1, INT64_MAX);
  const auto index = integer("index"), from = integer("from"), to = integer("to");
  const char* form = nullptr;
  for (const auto& [field, of] : kForms) {
    if (!fields.Has(field)) continue;
    if (form == nullptr) form = of;
    if (std::string_view(form) == of) continue;
    fields.Fail(form,
                fmt::format("stands alone, and {} names another place; give one of them", field));
  }
  // Nothing is erased by a body of which a part is not understood: it may have named less.
  for (const std::string& name : fields.Unread()) {
    if (std::ranges::any_of(kForms, [&](const auto& one) { return one.first == name; })) continue;
    fields.FailUnknown(
        name,
        "is not a field of forget, and nothing is forgotten; give \"last\", \"index\" "
        "(with \"begin\" and \"end\"), \"segment\", or \"from\" and \"to\"");
  }
  if (form == nullptr) fields.Fail("index", kForgetForms);
  if (fields.error()) return tl::unexpected(*fields.error());
  if (fields.Has("segment")) return FindSegment(state, segment);
  if (last) return LastTurns(state, static_cast<uint64_t>(*last));
  if (index) return ReadPart(fields, state, *index);
  if (from) return ReadRange(state, *from, to.value_or(-1));
  fields.Fail(form, kForgetForms);
  return tl::unexpected(*fields.error());
}

}  // namespace kvasir
