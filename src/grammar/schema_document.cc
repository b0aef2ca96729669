#include "grammar/schema_document.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/result.h"
#include "base/utf8.h"

namespace kvasir {
namespace {

constexpr int kMaxReferences = 100;  // one after the other
constexpr int kMaxTypeDepth = 20;    // of anyOf inside of each other, as types are looked for
constexpr size_t kMaxTypes = 20;     // in a list
constexpr size_t kMaxPathBytes = 200;
constexpr uint64_t kStepsOfText = 16;  // what a text takes beside its bytes

// Decodes a token of a JSON pointer (RFC 6901) in a URI fragment.
std::string DecodeToken(std::string_view token) {
  std::string text;
  for (size_t i = 0; i < token.size(); ++i) {
    uint8_t byte = 0;
    const char* const digits = token.data() + i + 1;
    if (token[i] == '%' && i + 2 < token.size() &&
        std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2) {
      text += static_cast<char>(byte);
      i += 2;
    } else if (token[i] == '~' && i + 1 < token.size()) {
      text += token[++i] == '1' ? '/' : '~';
    } else {
      text += token[i];
    }
  }
  return text;
}

// Returns a path without the middle of what is too long.
std::string Shortened(std::string path) {
  if (path.size() <= kMaxPathBytes) return path;
  size_t begin = kMaxPathBytes / 2, end = path.size() - kMaxPathBytes / 2 + 3;
  while (ContinuesChar(path[begin])) --begin;
  while (end < path.size() && ContinuesChar(path[end])) ++end;
  return path.replace(begin, end - begin, "...");
}

}  // namespace

SchemaPlace SchemaPlace::At(std::string_view key, const JsonValue& value) const {
  std::string token;
  for (const char c : Shortened(std::string(key))) {
    if (c == '~') {
      token += "~0";
    } else if (c == '/') {
      token += "~1";
    } else {
      token += c;
    }
  }
  return {&value, Shortened(path + "/" + token)};
}

tl::unexpected<Error> SchemaError(std::string_view path, std::string_view message) {
  return Fail(Code::kInvalidArgument, "at '{}': {}", path, message);
}

Result<SchemaPlace> SchemaDocument::Resolve(const JsonValue& reference,
                                            const std::string& path) const {
  if (!reference.is_string()) return SchemaError(path, "'$ref' is not a string");
  const std::string_view text = reference.text();
  KV_TRY(Spend(1 + text.size() / 16));
  if (text.empty() || text[0] != '#') {
    return SchemaError(path, "only references inside the document ('#/...') are supported");
  }
  const JsonValue* at = &root_;
  for (size_t begin = 1; begin < text.size();) {
    if (text[begin] != '/') return SchemaError(path, "a reference by name is not supported");
    const size_t end = std::min(text.find('/', begin + 1), text.size());
    const std::string token = DecodeToken(text.substr(begin + 1, end - begin - 1));
    const JsonValue* next = at->Find(token);
    size_t index = 0;
    const auto parsed = std::from_chars(token.data(), token.data() + token.size(), index);
    if (at->kind() == JsonValue::Kind::kArray && parsed.ec == std::errc() &&
        parsed.ptr == token.data() + token.size() && index < at->items().size()) {
      next = &at->items()[index];
    }
    if (next == nullptr) {
      return SchemaError(path, fmt::format("the document has nothing at '{}'", text));
    }
    at = next;
    begin = end;
  }
  return SchemaPlace{at, Shortened(std::string(text))};
}

Result<SchemaPlace> SchemaDocument::Follow(SchemaPlace place) const {
  for (int i = 0; i < kMaxReferences; ++i) {
    const JsonValue* const reference = place.schema->Find("$ref");
    if (reference == nullptr) return place;
    KV_TRY(Spend(place.schema->size()));
    for (const auto& member : place.schema->members()) {
      if (IsConstraint(member.key) && member.key != "$ref") {
        return SchemaError(place.path + "/" + std::string(member.key),
                           "not supported beside '$ref'");
      }
    }
    KV_ASSIGN(place, Resolve(*reference, place.path + "/$ref"));
  }
  return SchemaError(place.path, fmt::format("more than {} references follow each other, or they "
                                             "lead in a circle",
                                             kMaxReferences));
}

Result<std::optional<TypeSet>> NamedTypes(const SchemaPlace& place) {
  const JsonValue* const type = place.schema->Find("type");
  if (type == nullptr) return std::optional<TypeSet>();
  TypeSet types = 0;
  const std::string path = place.path + "/type";
  const auto add = [&](const JsonValue& name) -> Status {
    if (!name.is_string()) return SchemaError(path, "a type is not a string");
    const std::optional<TypeSet> named = TypeNamed(name.text());
    if (!named) return SchemaError(path, fmt::format("unknown type '{}'", name.text()));
    types |= *named;
    return {};
  };
  if (type->is_array()) {
    if (type->items().size() > kMaxTypes) {
      return SchemaError(path, fmt::format("more than {} types", kMaxTypes));
    }
    for (const JsonValue& name : type->items()) KV_TRY(add(name));
  } else {
    KV_TRY(add(*type));
  }
  if (types == 0) return SchemaError(path, "no type is named");
  return std::optional(types);
}

Result<TypeSet> SchemaDocument::PossibleTypes(const SchemaPlace& place, int depth) const {
  if (depth > kMaxTypeDepth) return kAnyType;
  KV_ASSIGN(const SchemaPlace at, Follow(place));
  if (!at.schema->is_object()) return kAnyType;
  const JsonValue* const names = at.schema->Find("type");
  KV_TRY(Spend(1 + (names == nullptr ? 0 : names->items().size())));
  KV_ASSIGN(const std::optional<TypeSet> named, NamedTypes(at));
  TypeSet types = named.value_or(kAnyType);
  if (const JsonValue* value = at.schema->Find("const")) types &= TypeOf(*value);
  if (const JsonValue* value = at.schema->Find("enum")) {
    if (value->kind() == JsonValue::Kind::kArray) {
      const auto [found, is_new] = types_.try_emplace(value, 0);
      if (is_new) KV_TRY(Spend(value->items().size()));
      for (size_t i = 0; is_new && i < value->items().size(); ++i) {
        found->second |= TypeOf(value->items()[i]);
      }
      types &= found->second;
    }
    if (value->kind() == JsonValue::Kind::kIds) types &= kIntegerType;
  }
  for (const std::string_view key : {"anyOf", "oneOf"}) {
    const JsonValue* const branches = at.schema->Find(key);
    if (branches == nullptr || branches->kind() != JsonValue::Kind::kArray) continue;
    TypeSet of_branches = 0;
    for (const JsonValue& branch : branches->items()) {
      KV_ASSIGN(const TypeSet of_branch, PossibleTypes({&branch, at.path}, depth + 1));
      of_branches |= of_branch;
    }
    types &= of_branches;
  }
  return types;
}

Result<const SchemaDocument::Texts*> SchemaDocument::ValuesOf(const JsonValue& schema) const {
  const JsonValue* const constant = schema.Find("const");
  const JsonValue* const values = constant != nullptr ? constant : schema.Find("enum");
  if (values == nullptr) return nullptr;
  if (constant == nullptr && !values->is_array() && values->kind() != JsonValue::Kind::kIds) {
    return nullptr;
  }
  const auto [found, is_new] = values_.try_emplace(values);
  Texts& texts = found->second;
  if (!is_new) return &texts;
  const auto add = [&](std::string text) {
    texts.push_back(std::move(text));
    return Spend(kStepsOfText + texts.back().size());
  };
  if (constant != nullptr) {
    KV_TRY(add(SortedTextOf(*constant)));
  } else if (values->kind() == JsonValue::Kind::kIds) {
    for (const int32_t id : values->ids()) KV_TRY(add(std::to_string(id)));
  } else {
    for (const JsonValue& value : values->items()) KV_TRY(add(SortedTextOf(value)));
  }
  std::sort(texts.begin(), texts.end());
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  return &texts;
}

Result<bool> SchemaDocument::HaveNoneInCommon(const JsonValue& one, const JsonValue& other) const {
  KV_ASSIGN(const Texts* fewer, ValuesOf(one));
  KV_ASSIGN(const Texts* more, ValuesOf(other));
  if (fewer == nullptr || more == nullptr) return false;
  if (fewer == more) return fewer->empty();
  if (fewer->size() > more->size()) std::swap(fewer, more);
  KV_TRY(Spend(fewer->size()));
  return std::ranges::none_of(
      *fewer, [&](const std::string& text) { return std::ranges::binary_search(*more, text); });
}

namespace {

bool Requires(const JsonValue& schema, std::string_view name) {
  const JsonValue* const required = schema.Find("required");
  if (required == nullptr || required->kind() != JsonValue::Kind::kArray) return false;
  return std::any_of(
      required->items().begin(), required->items().end(),
      [&](const JsonValue& item) { return item.is_string() && item.text() == name; });
}

}  // namespace

Result<bool> SchemaDocument::AreDisjoint(const SchemaPlace& one, const SchemaPlace& other) const {
  KV_ASSIGN(const TypeSet types, PossibleTypes(one));
  KV_ASSIGN(const TypeSet other_types, PossibleTypes(other));
  if ((types & other_types) == 0) return true;
  KV_ASSIGN(const SchemaPlace a, Follow(one));
  KV_ASSIGN(const SchemaPlace b, Follow(other));
  // Without "type" all others match too, but only objects are written.
  const auto written = [](TypeSet all, const JsonValue& schema) {
    return all == kAnyType && schema.Find("properties") != nullptr ? kObjectType : all;
  };
  const TypeSet common =
      (written(types, *a.schema) & other_types) | (types & written(other_types, *b.schema));
  KV_ASSIGN(const bool differ, HaveNoneInCommon(*a.schema, *b.schema));
  if (differ) return true;
  if ((common & ~kObjectType) != 0) return false;
  const JsonValue* const of_a = a.schema->Find("properties");
  const JsonValue* const of_b = b.schema->Find("properties");
  if (of_a == nullptr || of_b == nullptr || a.schema->Find("required") == nullptr ||
      b.schema->Find("required") == nullptr) {
    return false;
  }
  for (const auto& member : of_a->members()) {
    const JsonValue* const same = of_b->Find(member.key);
    KV_TRY(Spend(1 + a.schema->Find("required")->size() + b.schema->Find("required")->size()));
    if (same == nullptr || !Requires(*a.schema, member.key) || !Requires(*b.schema, member.key)) {
      continue;
    }
    KV_ASSIGN(const SchemaPlace in_a, Follow({&member.value, a.path}));
    KV_ASSIGN(const SchemaPlace in_b, Follow({same, b.path}));
    KV_ASSIGN(const bool differ_in, HaveNoneInCommon(*in_a.schema, *in_b.schema));
    if (differ_in) return true;
    KV_ASSIGN(const TypeSet types_in_a, PossibleTypes(in_a));
    KV_ASSIGN(const TypeSet types_in_b, PossibleTypes(in_b));
    if ((types_in_a & types_in_b) == 0) return true;
  }
  return false;
}

Status SchemaDocument::CheckDisjoint(const std::vector<SchemaPlace>& branches,
                                     const std::string& path) const {
  constexpr size_t kMaxBranches = 200;  // each is compared with each
  if (branches.size() > kMaxBranches) {
    return SchemaError(path, fmt::format("more than {} branches", kMaxBranches));
  }
  for (size_t i = 0; i < branches.size(); ++i) {
    for (size_t k = i + 1; k < branches.size(); ++k) {
      KV_ASSIGN(const bool are_disjoint, AreDisjoint(branches[i], branches[k]));
      if (are_disjoint) continue;
      return SchemaError(path, fmt::format("a value may match both branch {} and branch {}; use "
                                           "'anyOf', or a required property with 'const'",
                                           i, k));
    }
  }
  return {};
}

}  // namespace kvasir
