#include "grammar/schema_string.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"
#include "grammar/regular_expression.h"
#include "grammar/schema_limits.h"

namespace kvasir {
namespace {

constexpr std::string_view kYear = "(000[1-9]|00[1-9]\\d|0[1-9]\\d{2}|[1-9]\\d{3})";
constexpr std::string_view kDay =
    "((0[13578]|1[02])-(0[1-9]|[12]\\d|3[01])|(0[469]|11)-(0[1-9]|[12]\\d|30)|"
    "02-(0[1-9]|1\\d|2[0-8]))";
constexpr std::string_view kLeapDay =  // of years that 4 divides, of centuries those that 400 does
    "(\\d\\d(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)-02-29";
constexpr std::string_view kTime =
    "([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,6})?(Z|[+-]([01]\\d|2[0-3]):[0-5]\\d)";
constexpr std::string_view kUuid =
    "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}";

Result<ExpressionId> AddFormat(const SchemaPlace& place, std::string_view format,
                               GrammarSource* source) {
  const std::string date = fmt::format("({}-{}|{})", kYear, kDay, kLeapDay);
  const std::pair<std::string_view, std::string> known[] = {
      {"date", date},
      {"time", std::string(kTime)},
      {"date-time", date + "T" + std::string(kTime)},
      {"uuid", std::string(kUuid)}};
  for (const auto& [name, pattern] : known) {
    if (format != name) continue;
    for (const std::string_view key : {"minLength", "maxLength", "pattern"}) {
      if (place.schema->Find(key) == nullptr) continue;
      return SchemaError(place.path + "/" + std::string(key),
                         fmt::format("not supported beside format '{}'", name));
    }
    KV_ASSIGN(const ExpressionId text,
              AddRegularExpression(pattern, Extent::kWhole, JsonText::WriteChars, source));
    return source->Sequence({source->Literal("\""), text, source->Literal("\"")});
  }
  return SchemaError(place.path + "/format",
                     fmt::format("format '{}' is not supported (known: date, time, date-time, "
                                 "uuid); \"strict\": false ignores it",
                                 format));
}

}  // namespace

Result<ExpressionId> AddSchemaString(const SchemaPlace& place, SchemaStrictness strictness,
                                     JsonText* json) {
  GrammarSource* const source = json->source();
  KV_ASSIGN(const std::optional<uint32_t> least, CountAt(place, "minLength"));
  KV_ASSIGN(const std::optional<uint32_t> most, CountAt(place, "maxLength"));
  if (most && least.value_or(0) > *most) {
    return SchemaError(place.path + "/minLength",
                       fmt::format("{} is above maxLength {}", *least, *most));
  }
  const JsonValue *format = place.schema->Find("format"), *pattern = place.schema->Find("pattern");
  if (format != nullptr) {
    if (!format->is_string()) return SchemaError(place.path + "/format", "a string is needed");
    static constexpr std::string_view kKnown[] = {"date", "time", "date-time", "uuid"};
    if (strictness == SchemaStrictness::kStrict ||
        std::find(std::begin(kKnown), std::end(kKnown), format->text()) != std::end(kKnown)) {
      return AddFormat(place, format->text(), source);
    }
  }
  if (pattern != nullptr) {
    const std::string path = place.path + "/pattern";
    if (!pattern->is_string()) return SchemaError(path, "a string is needed");
    if (least || most) {
      return SchemaError(path,
                         "not supported beside minLength or maxLength; say it in the pattern");
    }
    auto text =
        AddRegularExpression(pattern->text(), Extent::kAnywhere, JsonText::WriteChars, source);
    if (!text) return SchemaError(path, text.error().message);
    return source->Sequence({source->Literal("\""), *text, source->Literal("\"")});
  }
  return least || most ? json->StringOfLength(least.value_or(0), most) : json->AnyString();
}

}  // namespace kvasir
