#include "import/experts.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

namespace kvasir {
namespace {

using nlohmann::json;

// Reads num_experts or num_local_experts: transformers knows both names in each family.
uint32_t ReadCount(Fields& fields, const Architecture& row) {
  const bool local = fields.Find("num_local_experts") != nullptr;
  return fields.Count(local ? "num_local_experts" : "num_experts", ConfigLimits::kExperts,
                      row.defaults.experts);
}

Status CheckOneCount(Fields& fields, const std::string& file) {
  const json *one = fields.Find("num_experts"), *other = fields.Find("num_local_experts");
  if (one == nullptr || other == nullptr || *one == *other) return {};
  return Fail(Code::kInvalidArgument,
              "{}: num_experts is {} and num_local_experts is {}; they must be equal, or one of "
              "them missing",
              file, Fields::Show(*one), Fields::Show(*other));
}

// Returns which layers have experts: not those of mlp_only_layers, and only every
// decoder_sparse_step-th. Empty: all.
Result<std::vector<bool>> ExpertLayers(Fields& fields, const ModelConfig& config,
                                       const std::string& file) {
  const uint32_t step = fields.Count("decoder_sparse_step", ConfigLimits::kLayers, 1);
  KV_TRY(fields.status());
  std::vector<bool> layers;
  for (uint32_t i = 0; i < config.num_layers; ++i) layers.push_back((i + 1) % step == 0);
  if (const json* dense = fields.Find("mlp_only_layers")) {
    if (!dense->is_array()) {
      return Fail(Code::kInvalidArgument, "{}: mlp_only_layers must be a list of layers", file);
    }
    for (const json& layer : *dense) {
      if (!layer.is_number_unsigned() || layer.get<uint64_t>() >= config.num_layers) {
        return Fail(Code::kInvalidArgument,
                    "{}: mlp_only_layers has {}; the model's layers are 0 to {}", file,
                    Fields::Show(layer), config.num_layers - 1);
      }
      layers[layer.get<uint64_t>()] = false;
    }
  }
  if (std::ranges::count(layers, true) == 0) {
    return Fail(Code::kInvalidArgument,
                "{}: no layer has experts by mlp_only_layers and decoder_sparse_step {}", file,
                step);
  }
  if (std::ranges::count(layers, false) == 0) layers.clear();
  return layers;
}

// Returns what an expert's tensor of an old file, "blk.N.ffn_gate.E.weight", is called in the
// catalog.
std::optional<std::string> NameOfOldExpert(std::string_view name) {
  for (const std::string_view kind : {".ffn_gate.", ".ffn_up.", ".ffn_down."}) {
    const size_t at = name.find(kind);
    if (at == name.npos || !name.starts_with("blk.") || !name.ends_with(".weight")) continue;
    const size_t begin = at + kind.size(), end = name.size() - std::string_view(".weight").size();
    if (begin >= end) continue;
    return fmt::format("{}{}_exps.weight[{}]", name.substr(0, at), kind.substr(0, kind.size() - 1),
                       name.substr(begin, end - begin));
  }
  return std::nullopt;
}

Status Insert(std::string name, StoredTensor tensor, TensorCatalog& catalog) {
  const std::string file = tensor.file;
  if (catalog.emplace(name, std::move(tensor)).second) return {};
  return Fail(Code::kCorruption, "{}: tensor '{}' is there twice, alone and with other experts",
              file, name);
}

Status SplitOne(const StoredTensor& whole, uint32_t count, TensorCatalog& catalog) {
  if (whole.shape.size() != 3 || whole.shape[0] != count) {
    return Fail(Code::kCorruption,
                "{}: tensor '{}' has the shape [{}], but the model's configuration says {} experts",
                whole.file, whole.name, fmt::join(whole.shape, ", "), count);
  }
  const size_t bytes = whole.bytes.size() / count;
  for (uint32_t i = 0; i < count; ++i) {
    StoredTensor part = whole;
    part.name = fmt::format("{}[{}]", whole.name, i);
    part.shape.erase(part.shape.begin());
    part.bytes = whole.bytes.subspan(i * bytes, bytes);
    KV_TRY(Insert(part.name, part, catalog));
  }
  return {};
}

}  // namespace

Result<std::optional<ExpertsConfig>> ReadHfExperts(Fields& fields, const Architecture& row,
                                                   const ModelConfig& config,
                                                   const std::string& file) {
  if (!row.experts) return std::nullopt;
  KV_TRY(CheckOneCount(fields, file));
  ExpertsConfig experts{.count = ReadCount(fields, row), .routing = row.routing};
  experts.chosen =
      fields.Count("num_experts_per_tok", ConfigLimits::kExperts, row.defaults.experts_chosen);
  experts.ffn_size = config.ffn_size;
  if (row.defaults.expert_ffn) {
    experts.ffn_size =
        fields.Count("moe_intermediate_size", ConfigLimits::kFfnSize, row.defaults.expert_ffn);
    experts.routing = fields.Flag("norm_topk_prob", false) ? Routing::kAllNormed : Routing::kAll;
    KV_ASSIGN(experts.layers, ExpertLayers(fields, config, file));
  }
  KV_TRY(fields.status());
  return experts;
}

Result<std::optional<ExpertsConfig>> ReadGgufExperts(Metadata& keys, const Architecture& row,
                                                     const ModelConfig& config,
                                                     const std::string& file) {
  if (!row.experts) return std::nullopt;
  for (const auto& [key, plain] : {std::pair("expert_shared_count", 0u),
                                   {"expert_group_count", 1},
                                   {"expert_gating_func", 1},
                                   {"leading_dense_block_count", 0}}) {
    const auto number = keys.Has(key) ? WholeNumber(*keys.Find(key)) : plain;
    if (number == 0u || number == plain) continue;
    return Fail(Code::kUnsupported, "{}: metadata '{}.{}' is not supported", file, row.gguf_name,
                key);
  }
  for (const char* key :
       {"expert_weights_scale", "expert_weights_norm", "interleave_moe_layer_step",
        "moe_every_n_layers", "expert_shared_feed_forward_length"}) {
    if (!keys.Has(key)) continue;
    return Fail(Code::kUnsupported, "{}: metadata '{}.{}' is not supported", file, row.gguf_name,
                key);
  }
  ExpertsConfig experts{.count = keys.Count("expert_count", ConfigLimits::kExperts),
                        .chosen = keys.Count("expert_used_count", ConfigLimits::kExperts),
                        .routing = row.routing};
  const uint32_t inferred = row.defaults.expert_ffn
                                ? std::max<uint32_t>(1, config.ffn_size / experts.chosen)
                                : config.ffn_size;
  experts.ffn_size = keys.Count("expert_feed_forward_length", ConfigLimits::kFfnSize, inferred);
  KV_TRY(keys.status());
  return experts;
}

Status SplitGgufExperts(const ModelConfig& config, TensorCatalog& catalog) {
  if (!config.experts) return {};
  TensorCatalog split;
  for (auto& [name, tensor] : catalog) {
    if (name.starts_with("blk.") && name.ends_with("_exps.weight")) {
      KV_TRY(SplitOne(tensor, config.experts->count, split));
    } else {
      const auto expert = NameOfOldExpert(name);
      KV_TRY(Insert(expert.value_or(name), std::move(tensor), split));
    }
  }
  catalog = std::move(split);
  return {};
}

}  // namespace kvasir
