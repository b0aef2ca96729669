#include "grammar/schema_merger.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

namespace kvasir {
namespace {

// Schemas that allOf makes or joins at once, and their properties: what would take longer is
// refused.
constexpr size_t kMaxMerged = 1000;
constexpr size_t kMaxJoined = 100'000;

bool SaysNothing(const JsonValue& schema) {
  if (schema.is_bool()) return schema.boolean();
  return std::ranges::all_of(schema.members(),
                             [](const auto& member) { return IsAnnotation(member.key); });
}

// Returns whether "type" is all that it says.
bool IsTypeOnly(const JsonValue& schema) {
  return std::ranges::all_of(schema.members(), [](const auto& member) {
    return member.key == "type" || IsAnnotation(member.key);
  });
}

const JsonValue& AnySchema() {
  static const JsonValue kTrue(true);
  return kTrue;
}

// kInvalidArgument: the schema has a keyword that cannot be joined with another schema's.
Status CheckJoins(const SchemaPlace& part) {
  KV_ASSIGN(const std::optional<TypeSet> types, NamedTypes(part));
  if (types && *types != kObjectType) {
    return SchemaError(part.path + "/type", "only schemas of objects can be joined");
  }
  for (const auto& member : part.schema->members()) {
    static constexpr std::string_view kJoined[] = {"type", "properties", "required",
                                                   "additionalProperties"};
    const bool joins = std::ranges::find(kJoined, member.key) != std::end(kJoined);
    if (joins || !IsConstraint(member.key)) continue;
    return SchemaError(part.path + "/" + std::string(member.key),
                       "not supported in schemas that are joined");
  }
  return {};
}

}  // namespace

// The properties of joined schemas, in the order in which the schemas list them.
struct SchemaMerger::Properties {
  // What several schemas say of one property: each schema once, by its text.
  struct Several {
    std::vector<JsonValue> all;
    std::set<std::string> texts;
  };
  std::vector<JsonValue::Member> all;
  std::map<std::string_view, size_t> place_of;  // in `all`
  std::map<size_t, Several> several;            // by that place

  Status Add(const JsonValue& properties, const SchemaDocument& document) {
    for (const auto& member : properties.members()) {
      const auto [found, is_new] = place_of.try_emplace(member.key, all.size());
      if (is_new) {
        all.push_back(member);
        continue;
      }
      Several& same = several[found->second];
      const auto say = [&](const JsonValue& schema) -> Status {
        std::string text = SortedTextOf(schema);
        KV_TRY(document.Spend(text.size()));
        if (same.texts.insert(std::move(text)).second) same.all.push_back(schema);
        return {};
      };
      if (same.all.empty()) KV_TRY(say(all[found->second].value));
      KV_TRY(say(member.value));
    }
    return {};
  }
  // Gives each property one schema.
  void Unite(JsonTree* tree) {
    for (const auto& [place, same] : several) {
      if (same.all.size() == 1) continue;
      all[place].value = tree->Object({{"allOf", tree->Array(same.all)}});
    }
  }
  // Forbids those that `listed`, which may be null, does not have.
  void ForbidOthers(const JsonValue* listed) {
    for (auto& property : all) {
      if (listed == nullptr || listed->Find(property.key) == nullptr) {
        property.value = JsonValue(false);
      }
    }
  }
};

Status SchemaMerger::Join(size_t properties, const std::string& path) {
  joined_ += properties;
  if (joined_ <= kMaxJoined) return {};
  return SchemaError(path, fmt::format("joined schemas have more than {} properties", kMaxJoined));
}

Result<SchemaPlace> SchemaMerger::Merge(const std::vector<SchemaPlace>& parts,
                                        const std::string& path) {
  if (parts.size() > kMaxMerged) {
    return SchemaError(path, fmt::format("more than {} schemas are joined", kMaxMerged));
  }
  std::vector<SchemaPlace> saying;  // those that say something
  const JsonValue* type_only = nullptr;
  for (const SchemaPlace& part : parts) {
    KV_ASSIGN(SchemaPlace at, document_.Follow(part));
    if (!at.schema->is_object() && !at.schema->is_bool()) {
      return SchemaError(at.path, "a schema is an object, true or false");
    }
    if (at.schema->is_bool() && !at.schema->boolean()) return at;
    KV_TRY(document_.Spend(1 + at.schema->size()));
    if (SaysNothing(*at.schema)) continue;
    if (IsTypeOnly(*at.schema)) type_only = at.schema;
    saying.push_back(std::move(at));
  }
  if (saying.empty()) return SchemaPlace{&AnySchema(), path};
  if (saying.size() == 1) return saying[0];
  // A type beside a schema of the same type adds nothing.
  if (saying.size() == 2 && type_only != nullptr) {
    const SchemaPlace& other = saying[saying[0].schema == type_only ? 1 : 0];
    KV_ASSIGN(const auto allowed, NamedTypes({type_only, path}));
    KV_ASSIGN(const TypeSet types, document_.PossibleTypes(other));
    if ((types & ~*allowed) == 0) return other;
  }
  return MergeObjects(saying, path);
}

Result<SchemaPlace> SchemaMerger::MergeObjects(const std::vector<SchemaPlace>& parts,
                                               const std::string& path) {
  if (merged_++ >= kMaxMerged) {
    return SchemaError(path, fmt::format("more than {} schemas are joined", kMaxMerged));
  }
  Properties properties;
  std::vector<JsonValue> required;
  std::optional<JsonValue> additional;
  for (const SchemaPlace& part : parts) {
    KV_TRY(CheckJoins(part));
    const JsonValue* const own = part.schema->Find("properties");
    if (own != nullptr && own->is_object()) {
      KV_TRY(Join(own->size(), path));
      KV_TRY(properties.Add(*own, document_));
    }
    const JsonValue* const needs = part.schema->Find("required");
    if (needs != nullptr && needs->kind() == JsonValue::Kind::kArray) {
      KV_TRY(Join(needs->items().size(), path));
      required.insert(required.end(), needs->items().begin(), needs->items().end());
    }
  }
  properties.Unite(&tree_);
  for (const SchemaPlace& part : parts) {
    const JsonValue* const own = part.schema->Find("additionalProperties");
    if (own == nullptr || SaysNothing(*own)) continue;
    if (!own->is_bool()) {
      return SchemaError(part.path + "/additionalProperties",
                         "a schema is not supported in schemas that are joined");
    }
    additional = *own;
    KV_TRY(document_.Spend(properties.all.size()));
    properties.ForbidOthers(part.schema->Find("properties"));
  }
  std::vector<JsonValue::Member> members = {{"type", tree_.String("object")},
                                            {"properties", tree_.Object(std::move(properties.all))},
                                            {"required", tree_.Array(required)}};
  if (additional) members.push_back({"additionalProperties", *additional});
  return SchemaPlace{Keep(tree_.Object(std::move(members))), path};
}

}  // namespace kvasir
