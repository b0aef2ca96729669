#include "api/draft_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>

#include "api/openai_request.h"

namespace kvasir {
namespace {

// Returns the text of a prediction's content; absent: it is neither a text nor a list of parts.
// Lists the unknown fields of parts.
std::optional<std::string> ContentText(const JsonValue& content, JsonFields& prediction) {
  if (content.is_string()) return std::string(content.text());
  if (!content.is_array()) return std::nullopt;
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const JsonValue& part = content.items()[i];
    JsonFields fields(part, fmt::format("content[{}].", i));
    const JsonValue* said = part.is_object() ? fields.Find("text") : nullptr;
    if (said == nullptr || !said->is_string()) return std::nullopt;
    text += said->text();
    fields.Find("type");
    prediction.TakeUnread(fields);
  }
  return text;
}

// Returns whether the request has one, whether or not it is of use.
bool ReadPrediction(JsonFields& fields, const ModelView& model, GenerateRequest* request) {
  const JsonValue* prediction = fields.Find("prediction");
  if (!prediction) return false;
  JsonFields inner(*prediction, "prediction.");
  const JsonValue* type = prediction->is_object() ? inner.Find("type") : nullptr;
  if (type == nullptr || !type->is_string() || type->text() != "content") {
    fields.Fail("prediction", "is not {\"type\": \"content\", \"content\": a text or parts}");
    return false;
  }
  const JsonValue* content = inner.Find("content");
  const auto text = content != nullptr ? ContentText(*content, inner) : std::nullopt;
  if (!text) {
    fields.Fail("prediction.content", "is neither a text nor a list of parts with `text`");
    return false;
  }
  if (text->empty()) {
    fields.TakeUnread(inner);
    return false;
  }
  const std::string ignored[] = {"prediction"};
  if (!model.drafts || request->draft_max == 0u) {
    fields.TakeUnread(ignored);
    return true;
  }
  EncodeOptions options{.add_special = false, .parse_special = false, .at_start = false};
  options.max_tokens = model.max_text_tokens();
  auto ids = EncodeText(*text, "prediction", options, model);
  // No context has room for so long an answer: what it predicts is not this one.
  if (!ids && ids.error().cause == Cause::kContext) {
    fields.TakeUnread(ignored);
    return true;
  }
  if (!ids) {
    fields.Fail(ids.error());
    return false;
  }
  fields.TakeUnread(inner);
  // No answer is longer.
  ids->resize(std::min<size_t>(ids->size(), model.ctx_size));
  request->prediction = std::move(*ids);
  return true;
}

}  // namespace

bool ReadDraftFields(JsonFields& fields, const ModelView& model, GenerateRequest* request) {
  std::optional<int64_t> inner_most;
  if (const JsonValue* object = fields.Find("speculative"); object && object->is_object()) {
    JsonFields inner(*object, "speculative.");
    inner_most = inner.Integer("n_max", 0, INT32_MAX);
    fields.TakeUnread(inner);
    if (inner.error()) fields.Fail(*inner.error());
  } else if (object) {
    fields.Fail("speculative", fmt::format("is {}, not an object", KindOf(*object)));
  }
  const auto most = fields.Integer("speculative.n_max", 0, INT32_MAX);
  if (most && inner_most && *most != *inner_most) {
    fields.Fail("speculative.n_max",
                fmt::format("is {}, and in the object `speculative` it is {}; give it once", *most,
                            *inner_most));
  }
  if (const auto given = most ? most : inner_most) {
    request->draft_max = static_cast<uint32_t>(std::min<int64_t>(*given, kMaxDraft));
  }
  return !fields.error() && ReadPrediction(fields, model, request);
}

}  // namespace kvasir
