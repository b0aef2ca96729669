#include "grammar/schema_limits.h"

#include <cmath>
#include <string>
#include <utility>

#include "base/result.h"
#include "grammar/grammar.h"

namespace kvasir {
namespace {

constexpr int64_t kMostBound = 1'000'000'000;  // of type number
constexpr size_t kMostDigits = 256;            // of an integer's bound
constexpr std::string_view kLimits[] = {"minimum", "exclusiveMinimum", "maximum",
                                        "exclusiveMaximum"};

// Returns the integer nearest to a limit, inside of it: a limit may have a fraction, or be
// excluded.
Result<Decimal> IntegerLimit(const JsonValue& value, const std::string& path, bool is_lower,
                             bool is_exclusive) {
  Decimal at;
  bool is_exact = true;
  if (value.is_integer()) {
    at = Decimal::Of(value.integer_text());
  } else if (!value.is_number()) {
    return SchemaError(path, "a number is needed");
  } else {
    const double limit = value.number(), whole = is_lower ? std::ceil(limit) : std::floor(limit);
    if (std::fabs(limit) > static_cast<double>(kMostInteger)) {
      return SchemaError(path, fmt::format("{} is beyond {}: write an integer with all its digits",
                                           limit, kMostInteger));
    }
    at = Decimal::Of(std::to_string(static_cast<int64_t>(whole)));
    is_exact = whole == limit;
  }
  if (at.digits.size() > kMostDigits) {
    return SchemaError(path,
                       fmt::format("integers of at most {} digits are supported", kMostDigits));
  }
  if (!is_exclusive || !is_exact) return at;
  return is_lower ? at.Next() : at.Previous();
}

}  // namespace

Result<std::optional<uint32_t>> CountAt(const SchemaPlace& place, std::string_view keyword) {
  const JsonValue* const value = place.schema->Find(keyword);
  if (value == nullptr) return std::optional<uint32_t>();
  const std::string path = place.path + "/" + std::string(keyword);
  if (!value->is_number() || value->number() < 0 ||
      value->number() != std::floor(value->number())) {
    return SchemaError(path, "a number of 0 or more, without fraction, is needed");
  }
  if (value->number() > kMaxGrammarNodes) {
    return SchemaError(path, fmt::format("{} is above {}", value->number(), kMaxGrammarNodes));
  }
  return std::optional(static_cast<uint32_t>(value->number()));
}

Result<IntegerBounds> IntegerBoundsOf(const SchemaPlace& place) {
  IntegerBounds bounds;
  std::string last;
  for (const std::string_view key : kLimits) {
    const JsonValue* const value = place.schema->Find(key);
    if (value == nullptr) continue;
    last = place.path + "/" + std::string(key);
    const bool is_lower = key.ends_with("inimum");
    KV_ASSIGN(Decimal at, IntegerLimit(*value, last, is_lower, key.starts_with("exclusive")));
    std::optional<Decimal>& own = is_lower ? bounds.least : bounds.most;
    if (!own || (is_lower ? at > *own : at < *own)) own = std::move(at);
  }
  if (bounds.least && bounds.most && *bounds.least > *bounds.most) {
    return SchemaError(last, "no number is within the limits");
  }
  return bounds;
}

Result<NumberBounds> NumberBoundsOf(const SchemaPlace& place) {
  NumberBounds bounds;
  std::string last;
  for (const std::string_view key : kLimits) {
    const JsonValue* const value = place.schema->Find(key);
    if (value == nullptr) continue;
    const std::string path = last = place.path + "/" + std::string(key);
    if (!value->is_number()) return SchemaError(path, "a number is needed");
    const bool is_lower = key.ends_with("inimum"), is_exclusive = key.starts_with("exclusive");
    const double limit = value->number();
    if (std::fabs(limit) > static_cast<double>(kMostBound)) {
      return SchemaError(path, fmt::format("{} is beyond {}", limit, kMostBound));
    }
    const auto at = static_cast<int64_t>(limit);
    if (static_cast<double>(at) != limit) {
      return SchemaError(path,
                         fmt::format("{} is not an integer: not supported for numbers", limit));
    }
    std::optional<int64_t>& own = is_lower ? bounds.least : bounds.most;
    bool& excludes = is_lower ? bounds.is_above_least : bounds.is_below_most;
    const bool is_tighter = !own || (is_lower ? at > *own : at < *own);
    if (is_tighter || (at == *own && is_exclusive)) excludes = is_exclusive;
    if (is_tighter) own = at;
  }
  const bool is_one = bounds.least && bounds.most && *bounds.least == *bounds.most;
  if ((bounds.least && bounds.most && *bounds.least > *bounds.most) ||
      (is_one && (bounds.is_above_least || bounds.is_below_most))) {
    return SchemaError(last, "no number is within the limits");
  }
  return bounds;
}

}  // namespace kvasir
