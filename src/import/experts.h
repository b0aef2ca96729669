// Experts of a model, as config.json and GGUF files name them and store their tensors.
#pragma once

#include "import/architecture.h"
#include "import/gguf_metadata.h"
#include "import/hf_fields.h"
#include "import/tensor_binding.h"

namespace kvasir {

// Reads ModelConfig::experts of a config.json; absent where the family has none. REQUIRES: config
// has num_layers and ffn_size.
Result<std::optional<ExpertsConfig>> ReadHfExperts(Fields& fields, const Architecture& row,
                                                   const ModelConfig& config,
                                                   const std::string& file);
// Reads like the above, for a GGUF file: all layers have experts.
Result<std::optional<ExpertsConfig>> ReadGgufExperts(Metadata& keys, const Architecture& row,
                                                     const ModelConfig& config,
                                                     const std::string& file);

// Gives each expert of a GGUF file a tensor "blk.N.ffn_gate_exps.weight[E]", whether the file holds
// those of a layer as one of three dimensions or, as old files do, as one tensor each.
// kCorruption names a tensor whose shape does not fit, or one that is stored both ways.
Status SplitGgufExperts(const ModelConfig& config, TensorCatalog& catalog);

}  // namespace kvasir
