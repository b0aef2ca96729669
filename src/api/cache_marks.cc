#include "api/cache_marks.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/fault.h"
#include "base/result.h"
#include "http/errors.h"

namespace kvasir {
namespace {

constexpr uint32_t kMinute = 60, kHour = 3600;
struct MarkTime {
  std::string_view name;
  uint32_t s;
};
constexpr MarkTime kTimes[] = {{"5m", 5 * kMinute},
                               {"30m", 30 * kMinute},
                               {"1h", kHour},
                               {"12h", 12 * kHour},
                               {"24h", 24 * kHour}};
constexpr uint32_t kOtherwise = 30 * kMinute;

std::optional<uint32_t> SecondsOf(std::string_view name) {
  const auto found = std::ranges::find(kTimes, name, &MarkTime::name);
  return found != std::end(kTimes) ? std::optional(found->s) : std::nullopt;
}

// Reads the time of marks that have none. Absent: the request names none.
Result<std::optional<uint32_t>> ReadTime(JsonFields& fields) {
  std::optional<uint32_t> time;
  if (const JsonValue* options = fields.Find("prompt_cache_options")) {
    JsonFields inner(*options, "prompt_cache_options.");
    std::string_view ttl;
    inner.Text("ttl", &ttl);
    inner.Find("prewarm"), inner.Find("comparison_response_id");  // of ReadCacheOptions
    if (inner.Has("ttl")) {
      time = SecondsOf(ttl);
      if (ttl != "30m" && ttl != "12h") inner.Refuse("ttl", R"("30m" or "12h")");
    }
    if (inner.error()) return tl::unexpected(*inner.error());
    fields.TakeUnread(inner);
  }
  if (fields.Find("prompt_cache_retention")) {
    std::string_view retention;
    fields.Text("prompt_cache_retention", &retention);
    if (retention != "in_memory" && retention != "in-memory" && retention != "24h") {
      fields.Refuse("prompt_cache_retention", R"("in_memory" or "24h")");
    }
    if (!time && retention == "24h") time = SecondsOf(retention);
  }
  if (fields.error()) return tl::unexpected(*fields.error());
  return time;
}

// Takes the mark out of a message or of a part of one. *ttl_s: the mark's time. `fields`: of the
// body, where the mark's unknown fields are listed.
Result<JsonValue> Unmarked(const JsonValue& object, const std::string& path, uint32_t otherwise,
                           JsonFields& fields, JsonTree* tree, std::optional<uint32_t>* ttl_s) {
  const JsonValue* mark = object.is_object() ? object.Find(kBreakpoint) : nullptr;
  if (!mark) return object;
  const std::string place = fmt::format("{}.{}", path, kBreakpoint);
  KV_ASSIGN(const auto time, TimeOfMark(*mark, place, otherwise));
  if (time) *ttl_s = time;
  ListUnknown(*mark, place, fields);
  if (FaultActive(Fault::kMarkInPrompt)) return object;
  std::vector<JsonValue::Member> members(object.members().begin(), object.members().end());
  std::erase_if(members, [](const JsonValue::Member& one) { return one.key == kBreakpoint; });
  return tree->Object(std::move(members));
}

}  // namespace

void ListUnknown(const JsonValue& mark, const std::string& path, JsonFields& fields) {
  if (!mark.is_object()) return;
  JsonFields inner(mark, path + ".");
  inner.Find("ttl"), inner.Find("mode");
  fields.TakeUnread(inner);
}

Result<std::optional<uint32_t>> TimeOfMark(const JsonValue& mark, const std::string& path,
                                           uint32_t otherwise) {
  if (mark.is_null() || (mark.is_bool() && !mark.boolean())) return std::optional<uint32_t>();
  const JsonValue* ttl = mark.is_object() ? mark.Find("ttl") : nullptr;
  std::optional<uint32_t> time = otherwise;
  if (ttl && !ttl->is_null()) time = ttl->is_string() ? SecondsOf(ttl->text()) : std::nullopt;
  if (time && (mark.is_object() || mark.is_bool())) return time;
  return FailField(Code::kInvalidArgument, path,
                   R"(is not true, false or an object with a ttl of "5m", "30m", "1h", "12h" or )"
                   R"("24h")");
}

CacheOptions ReadCacheOptions(JsonFields& fields) {
  CacheOptions read;
  const JsonValue* options = fields.Find("prompt_cache_options");
  if (!options) return read;
  JsonFields inner(*options, "prompt_cache_options.");
  inner.Bool("prewarm", &read.prewarms);
  if (inner.Has("comparison_response_id")) {
    read.compared = std::make_shared<HeadComparison>();
    inner.String("comparison_response_id", &read.compared->with);
  }
  if (inner.error()) fields.Fail(*inner.error());
  if (!options->is_object()) fields.Refuse("prompt_cache_options", "an object");
  return read;
}

Result<UnmarkedMessages> TakeMarks(JsonFields& fields, JsonTree* tree) {
  KV_ASSIGN(const std::optional<uint32_t> time, ReadTime(fields));
  UnmarkedMessages unmarked;
  const auto messages = fields.Find("messages")->items();
  unmarked.messages.reserve(messages.size());
  for (const JsonValue& raw : messages) {
    const auto index = static_cast<uint32_t>(unmarked.messages.size());
    const std::string path = fmt::format("messages[{}]", index);
    std::optional<uint32_t> ttl_s;
    KV_ASSIGN(JsonValue message,
              Unmarked(raw, path, time.value_or(kOtherwise), fields, tree, &ttl_s));
    const JsonValue* content = message.is_object() ? message.Find("content") : nullptr;
    const auto is_marked = [](const JsonValue& part) {
      return part.is_object() && part.Find(kBreakpoint) != nullptr;
    };
    if (content && content->is_array() && std::ranges::any_of(content->items(), is_marked)) {
      std::vector<JsonValue> parts;
      for (const JsonValue& part : content->items()) {
        KV_ASSIGN(parts.emplace_back(),
                  Unmarked(part, fmt::format("{}.content[{}]", path, parts.size()),
                           time.value_or(kOtherwise), fields, tree, &ttl_s));
      }
      std::vector<JsonValue::Member> members(message.members().begin(), message.members().end());
      members.push_back({"content", tree->Array(parts)});  // the last one of equal keys counts
      message = tree->Object(std::move(members));
    }
    if (ttl_s) unmarked.marks.push_back({index, *ttl_s});
    unmarked.messages.push_back(message);
  }
  if (unmarked.marks.empty() && time == SecondsOf("24h") && !messages.empty()) {
    unmarked.marks.push_back({static_cast<uint32_t>(messages.size() - 1), *time});
  }
  return unmarked;
}

}  // namespace kvasir
