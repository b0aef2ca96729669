#include "grammar/json_schema.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json_writer.h"
#include "base/result.h"
#include "grammar/grammar.h"
#include "grammar/json_text.h"
#include "grammar/schema_document.h"
#include "grammar/schema_limits.h"
#include "grammar/schema_merger.h"
#include "grammar/schema_string.h"

namespace kvasir {
namespace {

constexpr size_t kMaxPrefixItems = 500;  // each stands inside the one before

using Keywords = std::vector<std::string_view>;

// Makes a rule of each schema that is an object, an array, or is named by a reference; all of them
// are compiled from a queue, so that references cannot make it recurse.
class SchemaCompiler {
 public:
  SchemaCompiler(const JsonValue& root, SchemaStrictness strictness, JsonText* json)
      : root_(root),
        strictness_(strictness),
        document_(root, json->source()),
        source_(json->source()),
        json_(*json) {}

  Result<ExpressionId> Compile(std::optional<std::string_view> property);

 private:
  using Type = Result<ExpressionId> (SchemaCompiler::*)(const SchemaPlace&);

  // Adds a call of the schema's rule.
  ExpressionId Call(const SchemaPlace& place);
  // Adds the values of a schema. The others add its parts.
  Result<ExpressionId> Value(const SchemaPlace& place);
  Result<ExpressionId> Referenced(const SchemaPlace& place);
  Result<ExpressionId> AllOf(const SchemaPlace& place);
  Result<ExpressionId> AnyOf(const SchemaPlace& place, std::string_view keyword);
  Result<ExpressionId> Constants(const SchemaPlace& place);
  Result<ExpressionId> Typed(const SchemaPlace& place);
  Result<ExpressionId> Object(const SchemaPlace& place);
  Result<ExpressionId> Array(const SchemaPlace& place);
  Result<ExpressionId> String(const SchemaPlace& place) {
    return AddSchemaString(place, strictness_, &json_);
  }
  Result<ExpressionId> Integer(const SchemaPlace& place);
  Result<ExpressionId> Number(const SchemaPlace& place);

  // kInvalidArgument: the schema has a keyword outside `known` that may not be ignored.
  Status CheckKeywords(const SchemaPlace& place, const Keywords& known) const;
  // Returns the schemas of a list.
  Result<std::vector<SchemaPlace>> Branches(const SchemaPlace& place, std::string_view keyword);
  ExpressionId Member(std::string_view name, const SchemaPlace& value);

  const JsonValue root_, any_{true};
  const SchemaStrictness strictness_;
  const SchemaDocument document_;
  SchemaMerger merger_{&document_};
  GrammarSource* const source_;
  JsonText& json_;
  std::map<const JsonValue*, RuleId> rules_;
  std::deque<std::pair<RuleId, const JsonValue*>> open_;  // a rule's name is its path
};

ExpressionId SchemaCompiler::Call(const SchemaPlace& place) {
  const auto [found, is_new] = rules_.try_emplace(place.schema, RuleId{});
  if (is_new) {
    found->second = source_->AddRule(place.path);
    open_.emplace_back(found->second, place.schema);
  }
  return source_->Call(found->second);
}

Result<ExpressionId> SchemaCompiler::Compile(std::optional<std::string_view> property) {
  SchemaPlace begin{&root_, "#"};
  if (property) {
    const JsonValue& properties = *root_.Find("properties");
    begin = begin.At("properties", properties).At(*property, *properties.Find(*property));
  }
  const ExpressionId values = Call(begin);
  while (!open_.empty()) {
    const auto [rule, schema] = open_.front();
    open_.pop_front();
    const SchemaPlace place{schema, source_->rule(rule).name};
    KV_TRY(document_.Spend(1 + schema->size()));
    if (source_->rules().size() > kMaxGrammarRules) {
      return SchemaError(place.path, fmt::format("more than {} schemas", kMaxGrammarRules));
    }
    KV_ASSIGN(const ExpressionId value, Value(place));
    source_->Define(rule, value);
  }
  return values;
}

Status SchemaCompiler::CheckKeywords(const SchemaPlace& place, const Keywords& known) const {
  for (const auto& member : place.schema->members()) {
    const std::string_view key = member.key;
    if (IsAnnotation(key) || std::find(known.begin(), known.end(), key) != known.end()) continue;
    if (key == "$id" && place.path == "#") continue;
    if (key == "uniqueItems" && member.value.is_bool() && !member.value.boolean()) continue;
    const std::string path = place.At(key, member.value).path;
    if (IsConstraint(key)) return SchemaError(path, "this keyword is not supported here");
    if (strictness_ == SchemaStrictness::kStrict) {
      return SchemaError(path, "unknown keyword; \"strict\": false ignores it");
    }
  }
  return {};
}

Result<ExpressionId> SchemaCompiler::Value(const SchemaPlace& place) {
  const JsonValue& schema = *place.schema;
  if (schema.is_bool()) {
    if (schema.boolean()) return json_.AnyValue();
    return SchemaError(place.path, "no value matches false");
  }
  if (!schema.is_object()) return SchemaError(place.path, "a schema is an object, true or false");
  if (schema.Find("$ref") != nullptr) return Referenced(place);
  if (schema.Find("allOf") != nullptr) return AllOf(place);
  if (schema.Find("anyOf") != nullptr) return AnyOf(place, "anyOf");
  if (schema.Find("oneOf") != nullptr) return AnyOf(place, "oneOf");
  if (schema.Find("const") != nullptr || schema.Find("enum") != nullptr) return Constants(place);
  return Typed(place);
}

Result<ExpressionId> SchemaCompiler::Referenced(const SchemaPlace& place) {
  KV_TRY(CheckKeywords(place, {"$ref"}));
  KV_ASSIGN(const SchemaPlace target,
            document_.Resolve(*place.schema->Find("$ref"), place.path + "/$ref"));
  return Call(target);
}

Result<std::vector<SchemaPlace>> SchemaCompiler::Branches(const SchemaPlace& place,
                                                          std::string_view keyword) {
  const SchemaPlace at = place.At(keyword, *place.schema->Find(keyword));
  if (at.schema->kind() != JsonValue::Kind::kArray || at.schema->items().empty()) {
    return SchemaError(at.path, "a list of schemas is needed");
  }
  if (at.schema->size() > kMaxGrammarRules) {
    return SchemaError(at.path, fmt::format("more than {} schemas", kMaxGrammarRules));
  }
  KV_TRY(document_.Spend(at.schema->size()));
  std::vector<SchemaPlace> branches;
  for (const JsonValue& branch : at.schema->items()) {
    branches.push_back(at.At(std::to_string(branches.size()), branch));
  }
  return branches;
}

Result<ExpressionId> SchemaCompiler::AllOf(const SchemaPlace& place) {
  KV_ASSIGN(std::vector<SchemaPlace> parts, Branches(place, "allOf"));
  const auto is_beside = [](std::string_view key) { return key != "allOf"; };
  KV_ASSIGN(const JsonValue* const beside, merger_.Without(place, is_beside));
  parts.push_back({beside, place.path});
  KV_ASSIGN(const SchemaPlace merged, merger_.Merge(parts, place.path));
  return Call(merged);
}

Result<ExpressionId> SchemaCompiler::AnyOf(const SchemaPlace& place, std::string_view keyword) {
  KV_ASSIGN(std::vector<SchemaPlace> branches, Branches(place, keyword));
  if (keyword == "oneOf") {
    KV_TRY(document_.CheckDisjoint(branches, place.path + "/oneOf"));
  }
  const auto is_beside = [&](std::string_view key) { return key != keyword && !IsAnnotation(key); };
  KV_ASSIGN(const JsonValue* const beside, merger_.Without(place, is_beside));
  std::vector<ExpressionId> choices;
  if (beside->size() == 0) {
    for (const SchemaPlace& branch : branches) choices.push_back(Call(branch));
    return source_->Choice(choices);
  }
  const SchemaPlace all{beside, place.path};
  for (const SchemaPlace& branch : branches) {
    KV_ASSIGN(const SchemaPlace merged, merger_.Merge({all, branch}, branch.path));
    choices.push_back(Call(merged));
  }
  return source_->Choice(choices);
}

Result<ExpressionId> SchemaCompiler::Constants(const SchemaPlace& place) {
  KV_TRY(CheckKeywords(place, {"const", "enum", "type"}));
  KV_ASSIGN(const std::optional<TypeSet> types, NamedTypes(place));
  std::vector<ExpressionId> choices;
  const JsonValue* const constant = place.schema->Find("const");
  const JsonValue* const all = place.schema->Find("enum");
  KV_TRY(document_.Spend(all == nullptr ? 0 : all->size()));
  std::optional<std::string> only;
  if (constant != nullptr && all != nullptr) {
    only = SortedTextOf(*constant);
    KV_TRY(document_.Spend(only->size()));
  }
  const auto add = [&](const JsonValue& value) -> Status {
    if (types && (TypeOf(value) & *types) == 0) return {};
    if (only) {
      const std::string text = SortedTextOf(value);
      KV_TRY(document_.Spend(text.size()));
      if (text != *only) return {};
    }
    choices.push_back(json_.Constant(value));
    return source_->CheckSize();
  };
  if (all == nullptr) {
    KV_TRY(add(*constant));
  } else if (all->kind() == JsonValue::Kind::kIds) {
    for (const int32_t id : all->ids()) KV_TRY(add(JsonValue(int64_t{id})));
  } else if (all->is_array()) {
    for (const JsonValue& value : all->items()) KV_TRY(add(value));
  } else {
    return SchemaError(place.path + "/enum", "a list of values is needed");
  }
  if (choices.empty()) {
    return SchemaError(place.path + (all == nullptr ? "/const" : "/enum"), "no value is possible");
  }
  return source_->Choice(choices);
}

Result<ExpressionId> SchemaCompiler::Typed(const SchemaPlace& place) {
  KV_ASSIGN(std::optional<TypeSet> types, NamedTypes(place));
  if (!types) types = TypesByKeywords(*place.schema);
  Keywords known = *types == kAnyType ? Keywords() : KeywordsOf(*types);
  known.push_back("type");
  KV_TRY(CheckKeywords(place, known));
  if (*types == kAnyType) return json_.AnyValue();
  std::vector<ExpressionId> choices;
  if ((*types & kNullType) != 0) choices.push_back(source_->Literal("null"));
  if ((*types & kBooleanType) != 0) {
    choices.push_back(source_->Choice({source_->Literal("true"), source_->Literal("false")}));
  }
  static constexpr std::pair<TypeSet, Type> kMakers[] = {{kObjectType, &SchemaCompiler::Object},
                                                         {kArrayType, &SchemaCompiler::Array},
                                                         {kStringType, &SchemaCompiler::String},
                                                         {kNumberType, &SchemaCompiler::Number},
                                                         {kIntegerType, &SchemaCompiler::Integer}};
  for (const auto& [type, make] : kMakers) {
    if ((*types & type) == 0) continue;
    if (type == kIntegerType && (*types & kNumberType) != 0) continue;  // numbers have them
    KV_ASSIGN(const ExpressionId choice, (this->*make)(place));
    choices.push_back(choice);
  }
  return source_->Choice(choices);
}

ExpressionId SchemaCompiler::Member(std::string_view name, const SchemaPlace& value) {
  return source_->Sequence({source_->Literal(Quoted(name) + ":"), json_.Space(), Call(value)});
}

Result<ExpressionId> SchemaCompiler::Object(const SchemaPlace& place) {
  const JsonValue *properties = place.schema->Find("properties"),
                  *required = place.schema->Find("required"),
                  *additional = place.schema->Find("additionalProperties");
  if (properties != nullptr && !properties->is_object()) {
    return SchemaError(place.path + "/properties", "an object of schemas is needed");
  }
  std::vector<std::string_view> needed;
  if (required != nullptr) {
    if (required->kind() != JsonValue::Kind::kArray) {
      return SchemaError(place.path + "/required", "a list of names is needed");
    }
    KV_TRY(document_.Spend(required->size()));
    for (const JsonValue& name : required->items()) {
      if (!name.is_string()) return SchemaError(place.path + "/required", "a name is not a string");
      needed.push_back(name.text());
    }
    std::sort(needed.begin(), needed.end());
    needed.erase(std::unique(needed.begin(), needed.end()), needed.end());
  }
  const bool is_closed = additional != nullptr && additional->is_bool() && !additional->boolean();
  const SchemaPlace other = additional == nullptr ? SchemaPlace{&any_, place.path}
                                                  : place.At("additionalProperties", *additional);
  std::vector<std::string> names;
  std::vector<GrammarSource::ListItem> items;
  if (properties != nullptr) {
    const SchemaPlace at = place.At("properties", *properties);
    KV_TRY(document_.Spend(properties->size()));
    for (const auto& member : properties->members()) {
      names.emplace_back(member.key);
      const SchemaPlace value = at.At(member.key, member.value);
      const bool is_needed = std::binary_search(needed.begin(), needed.end(), member.key);
      if (member.value.is_bool() && !member.value.boolean()) {
        if (is_needed) return SchemaError(value.path, "it is required, and no value matches false");
        continue;
      }
      items.push_back({Member(member.key, value), !is_needed});
      KV_TRY(source_->CheckSize());
    }
  }
  for (const std::string_view name : needed) {
    if (properties != nullptr && properties->Find(name) != nullptr) continue;
    if (is_closed) {
      return SchemaError(
          place.path + "/required",
          fmt::format("'{}' is not in properties, and others are not allowed", name));
    }
    names.emplace_back(name);
    items.push_back({Member(name, other), false});
    KV_TRY(source_->CheckSize());
  }
  const ExpressionId comma = source_->Sequence({source_->Literal(","), json_.Space()});
  // Where properties are listed and nothing is said of others, there are no others.
  if (!is_closed && (additional != nullptr || items.empty())) {
    ExpressionId key = json_.AnyString();
    if (!names.empty()) {
      auto other_name = json_.OtherName(names);
      if (!other_name) return SchemaError(place.path, other_name.error().message);
      key = *other_name;
    }
    const ExpressionId member =
        source_->Sequence({key, source_->Literal(":"), json_.Space(), Call(other)});
    const ExpressionId more = source_->Repeat(source_->Sequence({comma, member}), 0, std::nullopt);
    items.push_back({source_->Sequence({member, more}), true});
  }
  return source_->Sequence({source_->Literal("{"), json_.Space(),
                            source_->List(comma, items, json_.Space()), source_->Literal("}")});
}

Result<ExpressionId> SchemaCompiler::Array(const SchemaPlace& place) {
  KV_ASSIGN(const std::optional<uint32_t> least, CountAt(place, "minItems"));
  KV_ASSIGN(std::optional<uint32_t> most, CountAt(place, "maxItems"));
  const uint32_t min = least.value_or(0);
  const JsonValue *prefix = place.schema->Find("prefixItems"), *items = place.schema->Find("items");
  const char* prefix_name = "prefixItems";
  if (prefix == nullptr && items != nullptr && items->kind() == JsonValue::Kind::kArray) {
    prefix = std::exchange(items, nullptr);  // as it was until draft 2019-09
    prefix_name = "items";
  }
  std::vector<ExpressionId> firsts;
  if (prefix != nullptr) {
    const SchemaPlace at = place.At(prefix_name, *prefix);
    if (prefix->kind() != JsonValue::Kind::kArray || prefix->items().size() > kMaxPrefixItems) {
      return SchemaError(at.path,
                         fmt::format("a list of at most {} schemas is needed", kMaxPrefixItems));
    }
    for (const JsonValue& item : prefix->items()) {
      firsts.push_back(Call(at.At(std::to_string(firsts.size()), item)));
    }
  }
  std::optional<ExpressionId> more;  // what follows them
  if (items != nullptr && !(items->is_bool() && !items->boolean())) {
    more = Call(place.At("items", *items));
  } else if (items == nullptr && prefix == nullptr) {
    more = json_.AnyValue();
  }
  if (!more) most = std::min<uint32_t>(most.value_or(kMaxGrammarNodes), firsts.size());
  if (most && min > *most) {
    return SchemaError(place.path + "/minItems", fmt::format("{} is above the {} items that there "
                                                             "may be",
                                                             min, *most));
  }
  if (firsts.empty() && more) firsts.push_back(*more);
  if (most && firsts.size() > *most) firsts.resize(*most);
  const auto num = static_cast<uint32_t>(firsts.size());
  const ExpressionId comma = source_->Sequence({source_->Literal(","), json_.Space()});
  ExpressionId rest = source_->Literal("");
  if (more && num > 0) {
    const auto left = most ? std::optional(*most - num) : std::nullopt;
    rest = source_->Repeat(source_->Sequence({comma, *more}), min > num ? min - num : 0, left);
  }
  for (uint32_t i = num; i-- > 0;) {
    rest = i == 0 ? source_->Sequence({firsts[i], rest, json_.Space()})
                  : source_->Sequence({comma, firsts[i], rest});
    if (i >= min) rest = source_->Optional(rest);
  }
  return source_->Sequence({source_->Literal("["), json_.Space(), rest, source_->Literal("]")});
}

Result<ExpressionId> SchemaCompiler::Integer(const SchemaPlace& place) {
  KV_ASSIGN(const IntegerBounds bounds, IntegerBoundsOf(place));
  return json_.Integer(bounds);
}

Result<ExpressionId> SchemaCompiler::Number(const SchemaPlace& place) {
  KV_ASSIGN(const NumberBounds bounds, NumberBoundsOf(place));
  return bounds.least || bounds.most ? json_.Number(bounds) : json_.AnyNumber();
}

}  // namespace

Result<ExpressionId> AddJsonSchema(const JsonValue& schema, SchemaStrictness strictness,
                                   JsonText* json, std::optional<std::string_view> property) {
  GrammarSource& source = *json->source();
  const size_t num_rules = source.rules().size();
  auto values = SchemaCompiler(schema, strictness, json).Compile(property);
  // After an error the source can still be compiled.
  for (size_t i = num_rules; !values && i < source.rules().size(); ++i) {
    const auto rule = static_cast<RuleId>(i);
    if (!source.rule(rule).expression) source.Define(rule, source.Literal(""));
  }
  return values;
}

}  // namespace kvasir
