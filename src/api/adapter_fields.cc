#include "api/adapter_fields.h"

#include <fmt/format.h>

#include <algorithm>

namespace kvasir {
namespace {

constexpr size_t kMostChoices = 256;  // kMaxLorasRange

// Reads one entry of a list of choices; absent: it failed the field.
std::optional<AdapterChoice> ReadAdapterChoice(const JsonValue& entry, size_t index,
                                               JsonFields& fields, std::string_view field) {
  const std::string place = fmt::format("[{}]", index);
  JsonFields inner(entry, fmt::format("{}{}.", field, place));
  const JsonValue* id = inner.Find("id");
  const JsonValue* scale = inner.Find("scale");
  fields.TakeUnread(inner);
  if (id == nullptr || id->kind() != JsonValue::Kind::kInteger || id->integer() < 0) {
    fields.Fail(field,
                fmt::format("{}: needs an id, a whole number from GET /lora-adapters", place));
    return std::nullopt;
  }
  if (scale == nullptr || !scale->is_number()) {
    fields.Fail(field, fmt::format("{}: needs a scale, a number", place));
    return std::nullopt;
  }
  const double value = scale->number();
  if (value >= -kMaxAdapterScale && value <= kMaxAdapterScale) {
    return AdapterChoice{static_cast<uint64_t>(id->integer()), value};
  }
  fields.Fail(field, fmt::format("{}: the scale is {}; give one from -{} to {}", place,
                                 NumberText(*scale), kMaxAdapterScale, kMaxAdapterScale));
  return std::nullopt;
}

}  // namespace

std::optional<std::vector<AdapterChoice>> ReadAdapterChoices(JsonFields& fields,
                                                             std::string_view field) {
  const JsonValue* list = fields.Find(field);
  if (list == nullptr) return std::nullopt;
  if (!list->is_array()) {
    fields.Fail(field,
                fmt::format("is {}, not a list of objects with id and scale", KindOf(*list)));
    return std::nullopt;
  }
  if (list->size() > kMostChoices) {
    fields.Fail(field,
                fmt::format("has {} entries; at most {} are allowed", list->size(), kMostChoices));
    return std::nullopt;
  }
  std::vector<AdapterChoice> choices;
  for (const JsonValue& entry : list->items()) {
    const auto choice = ReadAdapterChoice(entry, choices.size(), fields, field);
    if (!choice) return std::nullopt;
    choices.push_back(*choice);
  }
  return choices;
}

std::optional<AdapterCard> AdapterNamed(std::string_view name, const ModelView& model) {
  if (!model.adapters || std::ranges::find(model.names, name) != model.names.end()) {
    return std::nullopt;
  }
  for (AdapterCard& card : model.adapters()) {
    if (card.is_model && card.name == name) return std::move(card);
  }
  return std::nullopt;
}

void ReadAdapters(JsonFields& fields, std::string_view name, const ModelView& model,
                  GenerateRequest* request) {
  if (auto choices = ReadAdapterChoices(fields, "lora")) {
    request->adapters = std::move(*choices);
  } else if (const auto card = AdapterNamed(name, model)) {
    request->adapters = {{card->id, 1.0}};
  } else if (!model.takes_any_name && std::ranges::find(model.names, name) == model.names.end()) {
    // CheckModel saw an adapter of this name, which was unloaded since.
    fields.Fail(UnknownModel(name, model));
  }
}

}  // namespace kvasir
