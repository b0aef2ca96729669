#include "api/draft_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>

#include "api/openai_request.h"

namespace kvasir {
namespace {

// Returns the text of a prediction's content; absent: it is neither a text nor a list of parts.
std::optional<std::string> ContentText(const JsonValue& content) {
  if (content.is_string()) return std::string(content.text());
  if (!content.is_array()) return std::nullopt;
  std::string text;
  for (const JsonValue& part : content.items()) {
    const JsonValue* said = part.is_object() ? part.Find("text") : nullptr;
    if (said == nullptr || !said->is_string()) return std::nullopt;
    text += said->text();
  }
  return text;
}

void ReadPrediction(JsonFields& fields, const ModelView& model, GenerateRequest* request) {
  const JsonValue* prediction = fields.Find("prediction");
  if (!prediction) return;
  const JsonValue* type = prediction->is_object() ? prediction->Find("type") : nullptr;
  if (type == nullptr || !type->is_string() || type->text() != "content") {
    return fields.Fail("prediction",
                       "is not {\"type\": \"content\", \"content\": a text or parts}");
  }
  const JsonValue* content = prediction->Find("content");
  const auto text = content != nullptr ? ContentText(*content) : std::nullopt;
  if (!text) {
    return fields.Fail("prediction.content", "is neither a text nor a list of parts with `text`");
  }
  if (text->empty()) return;
  EncodeOptions options{.add_special = false, .parse_special = false, .at_start = false};
  options.max_tokens = model.max_text_tokens();
  auto ids = EncodeText(*text, "prediction", options, model);
  if (!ids) return fields.Fail(ids.error());
  // No answer is longer.
  ids->resize(std::min<size_t>(ids->size(), model.ctx_size));
  request->prediction = std::move(*ids);
}

}  // namespace

void ReadDraftFields(JsonFields& fields, const ModelView& model, GenerateRequest* request) {
  const auto take = [request](std::optional<int64_t> most) {
    if (most) request->draft_max = static_cast<uint32_t>(std::min<int64_t>(*most, kMaxDraft));
  };
  if (const JsonValue* object = fields.Find("speculative"); object && object->is_object()) {
    JsonFields inner(*object, "speculative.");
    take(inner.Integer("n_max", 0, INT32_MAX));
    fields.TakeUnread(inner);
    if (inner.error()) fields.Fail(*inner.error());
  } else if (object) {
    fields.Fail("speculative", fmt::format("is {}, not an object", KindOf(*object)));
  }
  take(fields.Integer("speculative.n_max", 0, INT32_MAX));
  if (!fields.error()) ReadPrediction(fields, model, request);
}

}  // namespace kvasir
