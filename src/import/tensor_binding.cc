#include "import/tensor_binding.h"

#include <fmt/ranges.h>

#include "base/result.h"

namespace kvasir {
namespace {

constexpr size_t kMaxNamed = 8;  // missing tensors that a message lists

struct Want {
  const SlotTraits* traits;
  std::string name;
  uint32_t layer;
};

// Calls fn(Want) for each slot that the config fills.
template <typename Fn>
void ForEachWant(const Architecture& architecture, NameStyle style, const ModelConfig& config,
                 Fn fn) {
  for (const SlotNames& names : architecture.slots) {
    const SlotTraits& traits = TraitsOf(names.slot);
    if (!Holds(traits.condition, config)) continue;
    const std::string_view pattern = style == NameStyle::kGguf ? names.gguf : names.hf;
    const uint32_t layers = pattern.find("{}") == pattern.npos ? 1 : config.num_layers;
    for (uint32_t layer = 0; layer < layers; ++layer) {
      fn(Want{&traits, TensorName(pattern, layer), layer});
    }
  }
}

Status CheckNoneMissing(const TensorCatalog& catalog, const Architecture& architecture,
                        NameStyle style, const ModelConfig& config, const std::string& where) {
  std::vector<std::string> missing;
  uint64_t num_missing = 0;
  ForEachWant(architecture, style, config, [&](Want want) {
    if (catalog.contains(want.name)) return;
    if (++num_missing <= kMaxNamed) missing.push_back(std::move(want.name));
  });
  if (num_missing == 0) return {};
  return Fail(Code::kNotFound, "{}: {} of the tensors that {} needs {} missing: {}{}", where,
              num_missing, architecture.hf_class, num_missing == 1 ? "is" : "are",
              fmt::join(missing, ", "),
              num_missing > kMaxNamed ? fmt::format(" and {} more", num_missing - kMaxNamed) : "");
}

Status CheckTensor(const StoredTensor& tensor, const SlotTraits& traits,
                   const ModelConfig& config) {
  if (!tensor.dtype) {
    return Fail(Code::kUnsupported,
                "{}: tensor '{}' is {}, which is not supported; weights may be {}: quantise the "
                "model's original files to one of these",
                tensor.file, tensor.name, tensor.type, kWeightTypes);
  }
  if (!traits.columns && IsQuantised(*tensor.dtype)) {
    return Fail(Code::kUnsupported,
                "{}: tensor '{}' is {}: norms and biases may be F32, F16 or BF16", tensor.file,
                tensor.name, tensor.type);
  }
  std::vector<uint64_t> shape = {SizeOf(traits.rows, config)};
  if (traits.columns) shape.push_back(SizeOf(*traits.columns, config));
  if (tensor.shape != shape) {
    return Fail(Code::kCorruption,
                "{}: tensor '{}' has the shape [{}], but the model's configuration says [{}]",
                tensor.file, tensor.name, fmt::join(tensor.shape, ", "), fmt::join(shape, ", "));
  }
  return {};
}

}  // namespace

TensorCatalog CatalogOf(std::vector<StoredTensor> tensors) {
  TensorCatalog catalog;
  for (StoredTensor& tensor : tensors) {
    std::string name = tensor.name;
    catalog.emplace(std::move(name), std::move(tensor));
  }
  return catalog;
}

Status BindTensors(const TensorCatalog& catalog, NameStyle style, const std::string& where,
                   ImportedModel& model) {
  const Architecture& architecture = ArchitectureOf(model.config);
  KV_TRY(CheckNoneMissing(catalog, architecture, style, model.config, where));
  Status status;
  ForEachWant(architecture, style, model.config, [&](const Want& want) {
    if (status) status = CheckTensor(catalog.at(want.name), *want.traits, model.config);
  });
  if (!status) return status;
  model.layers.resize(model.config.num_layers);
  const bool interleaved = style == NameStyle::kGguf && architecture.gguf_interleaved_rope_rows;
  ForEachWant(architecture, style, model.config, [&](const Want& want) {
    const StoredTensor& tensor = catalog.at(want.name);
    MatrixSource source{.view = {.name = tensor.name,
                                 .dtype = *tensor.dtype,
                                 .shape = tensor.shape,
                                 .data = tensor.bytes.data()},
                        .interleaved_rope_rows = interleaved && want.traits->rope_rows};
    Place(want.traits->slot, std::move(source), want.layer, model);
  });
  return {};
}

}  // namespace kvasir
