#include "import/lora_parts.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "base/result.h"

namespace kvasir {
namespace {

// A part of a tensor that an adapter may change: rows [first_row, first_row + rows) of it.
struct LoraPlace {
  uint32_t layer;
  LoraTarget target;
  uint64_t first_row, rows, in;
  bool rope_rows;
};
using LoraPlaces = std::unordered_map<std::string, std::vector<LoraPlace>>;

// Returns the parts of each tensor, by its name. Parts of a fused tensor follow each other.
LoraPlaces LoraPlacesOf(const ModelConfig& config, NameStyle style) {
  LoraPlaces places;
  const Architecture& row = ArchitectureOf(config);
  for (uint32_t layer = 0; layer < config.num_layers; ++layer) {
    for (const SlotNames& names : row.slots) {
      const auto* found =
          std::ranges::find(kLoraSlots, names.slot, &std::pair<Slot, LoraTarget>::first);
      const SlotTraits& traits = TraitsOf(names.slot);
      if (found == std::end(kLoraSlots) || !Holds(traits.condition, config, layer)) continue;
      const std::string_view pattern = style == NameStyle::kGguf ? names.gguf : names.hf;
      std::vector<LoraPlace>& parts = places[TensorName(pattern, layer)];
      const uint64_t first = parts.empty() ? 0 : parts.back().first_row + parts.back().rows;
      parts.push_back({layer, found->second, first, SizeOf(traits.rows, config),
                       SizeOf(*traits.columns, config), traits.rope_rows});
    }
  }
  return places;
}

// Says what a tensor is that no part of a layer takes.
tl::unexpected<Error> NoLoraPlace(const StoredLora& lora, const std::string& where,
                                  const ModelConfig& config) {
  const auto has = [&](std::string_view part) {
    return lora.shown.find(part) != std::string::npos;
  };
  if (has("expert") || has("_exps") || has("mlp.gate.") || has("gate_inp") || has("moe")) {
    return Fail(Code::kUnsupported,
                "{}: changes '{}': adapters of experts and routers are not supported", where,
                lora.shown);
  }
  if (has("embed") || has("token_embd") || has("wte")) {
    return Fail(Code::kUnsupported, "{}: changes '{}': adapters of the embedding are not supported",
                where, lora.shown);
  }
  if (has("lm_head") || lora.shown.starts_with("output")) {
    return Fail(Code::kUnsupported,
                "{}: changes '{}': adapters of the output head are not supported", where,
                lora.shown);
  }
  return Fail(Code::kInvalidArgument,
              "{}: changes '{}', which {} with {} layers does not have; was the adapter trained "
              "for another model?",
              where, lora.shown, ArchitectureOf(config).hf_class, config.num_layers);
}

tl::unexpected<Error> WrongLoraShape(const StoredTensor& tensor, uint64_t rows, uint64_t columns) {
  return Fail(Code::kInvalidArgument,
              "{}: tensor '{}' has the shape [{}], but this model needs [{}, {}]; was the adapter "
              "trained for another model?",
              tensor.file, tensor.name, fmt::join(tensor.shape, ", "), rows, columns);
}

Status CheckLoraType(const StoredTensor& tensor) {
  if (tensor.dtype) return {};
  return Fail(Code::kUnsupported,
              "{}: tensor '{}' is {}, which is not supported; numbers of adapters may be {}",
              tensor.file, tensor.name, tensor.type, kWeightTypes);
}

Result<double> LoraScaleOf(const StoredLora& lora, uint32_t rank, const std::string& where) {
  if (!lora.alpha) return 1.0;
  const double divisor = lora.is_root ? std::sqrt(static_cast<double>(rank)) : rank;
  // GGUF files have alpha in f32, so both kinds of files give the same scale.
  const auto alpha = static_cast<double>(static_cast<float>(*lora.alpha));
  const double scale = alpha / divisor;
  if (std::isfinite(scale) && std::abs(scale) <= 1e6) return scale;
  return Fail(Code::kInvalidArgument,
              "{}: alpha of '{}' is {}, with rank {}; the scale of an adapter may be up to 1e6",
              where, lora.shown, *lora.alpha, rank);
}

Result<uint32_t> LoraRankOf(const StoredLora& lora, const std::string& where) {
  if (!lora.a || !lora.b) {
    const StoredTensor& half = lora.a ? *lora.a : *lora.b;
    return Fail(Code::kCorruption, "{}: tensor '{}' is there, but its other half, {}, is missing",
                where, half.name, lora.a ? "lora_B" : "lora_A");
  }
  for (const StoredTensor* half : {&*lora.a, &*lora.b}) {
    if (half->shape.size() == 2) continue;
    return Fail(Code::kCorruption, "{}: tensor '{}' has {} dimensions, not 2", where, half->name,
                half->shape.size());
  }
  const uint64_t rank = lora.a->shape[0];
  if (rank < 1 || rank > kMaxLoraRank || rank != lora.b->shape[1]) {
    return Fail(Code::kCorruption,
                "{}: tensor '{}' has {} rows and '{}' {} columns; both must be the rank, from 1 to "
                "{}",
                where, lora.a->name, rank, lora.b->name, lora.b->shape[1], kMaxLoraRank);
  }
  if (lora.rank && *lora.rank != rank) {
    return Fail(Code::kCorruption, "{}: tensor '{}' has rank {}, but adapter_config.json says {}",
                where, lora.a->name, rank, *lora.rank);
  }
  return static_cast<uint32_t>(rank);
}

// Returns the format of all numbers where it is the same one of 16 bits, else that of any.
WeightFormat FormatOf(const StoredLoras& loras) {
  std::optional<WeightFormat> format;
  for (const auto& [weight, lora] : loras) {
    for (const auto* half : {&lora.a, &lora.b}) {
      if (!*half) continue;
      const WeightFormat of_half = (*half)->dtype.value_or(WeightFormat::kF32);
      if (format.value_or(of_half) != of_half) return WeightFormat::kF32;
      format = of_half;
    }
  }
  const bool has_16_bits = format == WeightFormat::kF16 || format == WeightFormat::kBf16;
  return has_16_bits ? *format : WeightFormat::kF32;
}

}  // namespace

Status AddHalf(const std::string& weight, std::string shown, bool is_b, StoredTensor tensor,
               StoredLoras& loras) {
  StoredLora& lora = loras.try_emplace(weight, StoredLora{.shown = std::move(shown)}).first->second;
  std::optional<StoredTensor>& half = is_b ? lora.b : lora.a;
  if (half) {
    return Fail(Code::kCorruption, "{}: tensors '{}' and '{}' are the same one", tensor.file,
                half->name, tensor.name);
  }
  half = std::move(tensor);
  return {};
}

Result<LoraAdapter> BindLoras(const StoredLoras& loras, NameStyle style, bool interleaved,
                              const std::string& where, const ModelConfig& config) {
  const LoraPlaces places = LoraPlacesOf(config, style);
  LoraAdapter adapter{.format = FormatOf(loras)};
  for (const auto& [weight, lora] : loras) {
    const auto found = places.find(weight);
    if (found == places.end()) return NoLoraPlace(lora, where, config);
    const std::vector<LoraPlace>& parts = found->second;
    KV_ASSIGN(const uint32_t rank, LoraRankOf(lora, where));
    const uint64_t in = parts.front().in, out = parts.back().first_row + parts.back().rows;
    if (lora.a->shape[1] != in) return WrongLoraShape(*lora.a, rank, in);
    if (lora.b->shape[0] != out) return WrongLoraShape(*lora.b, out, rank);
    KV_ASSIGN(const double scale, LoraScaleOf(lora, rank, where));
    KV_TRY(CheckLoraType(*lora.a));
    KV_TRY(CheckLoraType(*lora.b));
    for (const LoraPlace& part : parts) {
      adapter.pairs.push_back(
          {.layer = part.layer,
           .target = part.target,
           .rank = rank,
           .in = static_cast<uint32_t>(in),
           .out = static_cast<uint32_t>(part.rows),
           .scale = scale,
           .a = {.tensor = *lora.a},
           .b = {.tensor = *lora.b,
                 .first_row = part.first_row,
                 .head_dim = interleaved && part.rope_rows ? config.head_dim : 0}});
    }
  }
  return adapter;
}

}  // namespace kvasir
