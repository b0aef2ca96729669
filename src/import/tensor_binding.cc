#include "import/tensor_binding.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <unordered_set>

#include "base/result.h"

namespace kvasir {
namespace {

constexpr size_t kMaxNamed = 8;  // missing tensors that a message lists

// A slot that the config fills, and the rows of a tensor that it is filled from.
struct Want {
  const SlotTraits* traits;
  Half half;
  const ModelConfig* config;  // of that half
  std::string name;
  uint32_t layer;
  uint64_t first_row, tensor_rows;
  bool transposed;  // stored as [columns, rows]
};

std::string_view PatternOf(const SlotNames& names, NameStyle style) {
  return style == NameStyle::kGguf ? names.gguf : names.hf;
}

// Returns a slot's first row in its tensor, which slots of the same name share, and the tensor's
// rows.
std::pair<uint64_t, uint64_t> RowsOf(const SlotNames& names, std::span<const SlotNames> slots,
                                     NameStyle style, const ModelConfig& config, uint32_t layer) {
  uint64_t first_row = 0, tensor_rows = 0;
  for (const SlotNames& other : slots) {
    const SlotTraits& traits = TraitsOf(other.slot);
    if (PatternOf(other, style) != PatternOf(names, style)) continue;
    if (!Holds(traits.condition, config, layer)) continue;
    if (&other == &names) first_row = tensor_rows;
    tensor_rows += SizeOf(traits.rows, config);
  }
  return {first_row, tensor_rows};
}

// Calls fn(Want) for each slot of a half that its config fills.
template <typename Fn>
void ForEachWantOf(Half half, const Architecture& architecture, NameStyle style,
                   const ModelConfig& config, Fn fn) {
  const auto slots = half == Half::kEncoder ? architecture.encoder_slots : architecture.slots;
  for (const SlotNames& names : slots) {
    const SlotTraits& traits = TraitsOf(names.slot);
    const std::string_view pattern = PatternOf(names, style);
    const bool of_layer = pattern.find("{}") != pattern.npos;
    const bool transposed = style == NameStyle::kHuggingFace && architecture.hf_transposed &&
                            of_layer && traits.columns;
    for (uint32_t layer = 0; layer < (of_layer ? config.num_layers : 1); ++layer) {
      if (!Holds(traits.condition, config, layer)) continue;
      const auto [first_row, tensor_rows] = RowsOf(names, slots, style, config, layer);
      for (uint32_t i = 0; i < TensorsOf(names.slot, config); ++i) {
        fn(Want{&traits, half, &config, TensorName(pattern, layer, i), layer, first_row,
                tensor_rows, transposed});
      }
    }
  }
}

template <typename Fn>
void ForEachWant(const Architecture& architecture, NameStyle style, const ModelConfig& config,
                 Fn fn) {
  ForEachWantOf(Half::kDecoder, architecture, style, config, fn);
  if (!config.encoder) return;
  const ModelConfig encoder = EncoderOf(config);
  ForEachWantOf(Half::kEncoder, architecture, style, encoder, fn);
}

void MakeLayers(ImportedModel& model) {
  model.layers.resize(model.config.num_layers);
  if (!model.config.encoder) return;
  model.encoder.emplace().layers.resize(model.config.encoder->num_layers);
}

Status CheckNoneMissing(const TensorCatalog& catalog, const Architecture& architecture,
                        NameStyle style, const ModelConfig& config, const std::string& where) {
  std::vector<std::string> missing;
  uint64_t num_missing = 0;
  ForEachWant(architecture, style, config, [&](Want want) {
    if (want.first_row > 0 || catalog.contains(want.name)) return;
    if (++num_missing <= kMaxNamed) missing.push_back(std::move(want.name));
  });
  if (num_missing == 0) return {};
  return Fail(Code::kNotFound, "{}: {} of the tensors that {} needs {} missing: {}{}", where,
              num_missing, architecture.hf_class, num_missing == 1 ? "is" : "are",
              fmt::join(missing, ", "),
              num_missing > kMaxNamed ? fmt::format(" and {} more", num_missing - kMaxNamed) : "");
}

// Tells whether a layer's tensor holds no weights: rotary frequencies and GPT-2's causal mask.
bool IsBuffer(std::string_view name) {
  for (const char* end :
       {".rotary_emb.inv_freq", ".attn.masked_bias", ".attn.bias", ".attn_rot_embd.weight"}) {
    if (name.ends_with(end)) return true;
  }
  return false;
}

Status CheckNoneLeft(const TensorCatalog& catalog, const Architecture& architecture,
                     NameStyle style, const ModelConfig& config) {
  std::unordered_set<std::string> wanted;
  ForEachWant(architecture, style, config, [&](Want want) { wanted.insert(want.name); });
  const auto is_of_layer = [&](std::string_view name, std::span<const SlotNames> slots) {
    const auto q = std::ranges::find(slots, Slot::kQ, &SlotNames::slot);
    if (q == slots.end()) return false;
    const std::string_view pattern = PatternOf(*q, style);
    return name.starts_with(pattern.substr(0, pattern.find("{}")));
  };
  const StoredTensor* first = nullptr;  // by name, so that the message is always the same
  for (const auto& [name, tensor] : catalog) {
    const bool of_layer =
        is_of_layer(name, architecture.slots) || is_of_layer(name, architecture.encoder_slots);
    if (!of_layer || wanted.contains(name) || IsBuffer(name)) continue;
    if (first == nullptr || tensor.name < first->name) first = &tensor;
  }
  if (first == nullptr) return {};
  return Fail(Code::kUnsupported,
              "{}: tensor '{}' has no place in {} of {} layers as its configuration describes it: "
              "the model computes something that is not supported",
              first->file, first->name, architecture.hf_class, config.num_layers);
}

Status CheckTensor(const StoredTensor& tensor, const Want& want) {
  const SlotTraits& traits = *want.traits;
  if (!tensor.dtype) {
    return Fail(Code::kUnsupported,
                "{}: tensor '{}' is {}, which is not supported; weights may be {}: quantise the "
                "model's original files to one of these",
                tensor.file, tensor.name, tensor.type, kWeightTypes);
  }
  const bool whole =
      !traits.columns || traits.slot == Slot::kPositions || traits.slot == Slot::kRouter;
  if (whole && (IsQuantised(*tensor.dtype) || tensor.integers)) {
    return Fail(
        Code::kUnsupported,
        "{}: tensor '{}' is {}: norms, biases, positions and routers may be F32, F16 or BF16",
        tensor.file, tensor.name, tensor.type);
  }
  std::vector<uint64_t> shape = {want.tensor_rows};
  if (traits.columns) shape.push_back(SizeOf(*traits.columns, *want.config));
  if (want.transposed) std::ranges::reverse(shape);
  if (tensor.shape != shape) {
    return Fail(Code::kCorruption,
                "{}: tensor '{}' has the shape [{}], but the model's configuration says [{}]",
                tensor.file, tensor.name, fmt::join(tensor.shape, ", "), fmt::join(shape, ", "));
  }
  return {};
}

bool IsNorm(Slot slot) {
  switch (slot) {
    case Slot::kFinalNorm:
    case Slot::kAttentionNorm:
    case Slot::kAttentionPostNorm:
    case Slot::kFfnNorm:
    case Slot::kFfnPostNorm:
    case Slot::kQNorm:
    case Slot::kKNorm:
    case Slot::kAllQNorm:
    case Slot::kAllKNorm:
      return true;
    default:
      return false;
  }
}

MatrixSource SourceOf(const StoredTensor& tensor, const Want& want) {
  const SlotTraits& traits = *want.traits;
  const ModelConfig& config = *want.config;
  MatrixSource source{.view = {.name = tensor.name,
                               .dtype = *tensor.dtype,
                               .shape = {SizeOf(traits.rows, config)},
                               .data = tensor.bytes.data()}};
  if (traits.columns) source.view.shape.push_back(SizeOf(*traits.columns, config));
  const uint64_t row_numbers = want.transposed || !traits.columns ? 1 : source.view.shape[1];
  if (!tensor.bytes.empty()) {
    source.view.data += StoredBytes(*tensor.dtype, want.first_row * row_numbers);
  }
  if (want.transposed) source.column_stride = want.tensor_rows;
  source.view.integers = tensor.integers;
  return source;
}

}  // namespace

void DescribeTensors(DType dtype, const std::function<const std::byte*(Slot, uint64_t)>& data,
                     ImportedModel& model) {
  const Architecture& architecture = ArchitectureOf(model.config);
  MakeLayers(model);
  ForEachWant(architecture, NameStyle::kHuggingFace, model.config, [&](const Want& want) {
    StoredTensor tensor{.name = want.name, .dtype = dtype};
    MatrixSource source = SourceOf(tensor, want);
    source.view.data = data(want.traits->slot, source.view.num_elements());
    Place(want.half, want.traits->slot, std::move(source), want.layer, model);
  });
}

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
    if (status) status = CheckTensor(catalog.at(want.name), want);
  });
  if (!status) return status;
  KV_TRY(CheckNoneLeft(catalog, architecture, style, model.config));
  MakeLayers(model);
  const bool interleaved = style == NameStyle::kGguf && architecture.gguf_interleaved_rope_rows;
  ForEachWant(architecture, style, model.config, [&](const Want& want) {
    MatrixSource source = SourceOf(catalog.at(want.name), want);
    source.interleaved_rope_rows = interleaved && want.traits->rope_rows;
    source.view.less_one = style == NameStyle::kHuggingFace && architecture.hf_norms_less_one &&
                           IsNorm(want.traits->slot);
    Place(want.half, want.traits->slot, std::move(source), want.layer, model);
  });
  return {};
}

}  // namespace kvasir
