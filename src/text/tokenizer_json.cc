#include "text/tokenizer_json.h"

#include <nlohmann/json.hpp>

#include "base/result.h"
#include "base/utf8.h"

namespace kvasir {
namespace {

constexpr int kMaxNesting = 16;  // depth of Sequences in Sequences

}  // namespace

Result<std::string> StringField(const nlohmann::json& object, const char* name,
                                std::string_view fallback, std::string_view file) {
  const auto it = object.find(name);
  if (it == object.end() || it->is_null()) return std::string(fallback);
  if (!it->is_string()) return Fail(Code::kCorruption, "{}: {} is not a string", file, name);
  return it->get<std::string>();
}

Result<bool> BoolField(const nlohmann::json& object, const char* name, bool fallback,
                       std::string_view file) {
  const auto it = object.find(name);
  if (it == object.end() || it->is_null()) return fallback;
  if (!it->is_boolean()) return Fail(Code::kCorruption, "{}: {} is not a boolean", file, name);
  return it->get<bool>();
}

bool IsOneChar(std::string_view text) {
  size_t pos = 0;
  return !text.empty() && (NextChar(text, &pos), pos == text.size());
}

Result<MetaspaceFields> ReadMetaspace(const nlohmann::json& value) {
  MetaspaceFields fields;
  KV_ASSIGN(fields.replacement, StringField(value, "replacement", "\xE2\x96\x81"));
  if (!IsOneChar(fields.replacement)) {
    return Fail(Code::kCorruption, "tokenizer.json: Metaspace.replacement is not one character");
  }
  KV_ASSIGN(const bool prefix, BoolField(value, "add_prefix_space", true));
  KV_ASSIGN(fields.scheme, StringField(value, "prepend_scheme", prefix ? "always" : "never"));
  return fields;
}

namespace {

// Walks through Sequences in Sequences.
struct StepWalk {
  std::string_view kind;
  const char* list;
  const std::function<Status(const nlohmann::json&)>& take;

  Status Visit(const nlohmann::json& value, int depth) const {
    if (!value.is_object()) {
      return Fail(Code::kCorruption, "tokenizer.json: {} is not an object", kind);
    }
    if (value.value("type", nlohmann::json()) != "Sequence") return take(value);
    const auto steps = value.find(list);
    if (steps == value.end() || !steps->is_array() || depth == 0) {
      return Fail(Code::kCorruption, "tokenizer.json: {} Sequence has no list, or nests too deep",
                  kind);
    }
    for (const auto& step : *steps) KV_TRY(Visit(step, depth - 1));
    return {};
  }
};

}  // namespace

Status ForEachStep(const nlohmann::json& value, std::string_view kind, const char* list,
                   const std::function<Status(const nlohmann::json&)>& take) {
  return StepWalk{kind, list, take}.Visit(value, kMaxNesting);
}

}  // namespace kvasir
