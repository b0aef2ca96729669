// The steps of reading an adapter that both kinds of files share.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "import/lora.h"
#include "import/tensor_binding.h"

namespace kvasir {

// The slots of the matrices that adapters may change, in the order of LoraTarget.
inline constexpr std::pair<Slot, LoraTarget> kLoraSlots[] = {
    {Slot::kQ, LoraTarget::kQ},       {Slot::kK, LoraTarget::kK},
    {Slot::kV, LoraTarget::kV},       {Slot::kO, LoraTarget::kO},
    {Slot::kGate, LoraTarget::kGate}, {Slot::kUp, LoraTarget::kUp},
    {Slot::kDown, LoraTarget::kDown},
};

// The two halves of a change, as a file has them.
struct StoredLora {
  std::string shown;                   // the changed tensor's name in the file's words
  std::optional<StoredTensor> a = {};  // [rank, in]
  std::optional<StoredTensor> b = {};  // [out, rank]
  std::optional<double> alpha = {};    // absent: the scale is 1
  std::optional<uint32_t> rank = {};   // what the file says; absent: what the tensors say
  bool is_root = false;                // alpha is divided by the root of the rank
};

// By the changed tensor's name in the architecture table.
using StoredLoras = std::map<std::string, StoredLora>;

// Puts half `is_b` of a change into `loras`, beside the other half of the same `weight`.
// kCorruption: that half is there already. O(log tensors).
Status AddHalf(const std::string& weight, std::string shown, bool is_b, StoredTensor tensor,
               StoredLoras& loras);

// Makes pairs of the changes: finds their matrices in the architecture table, checks shapes and
// types, and cuts a fused matrix into its parts. `interleaved`: rows of B of q and k are stored as
// GGUF's `llama` stores the matrices' (MatrixSource). Errors as OpenLora.
Result<LoraAdapter> BindLoras(const StoredLoras& loras, NameStyle style, bool interleaved,
                              const std::string& where, const ModelConfig& config);

Result<LoraAdapter> OpenPeftLora(const std::filesystem::path& folder, const ModelConfig& config);
Result<LoraAdapter> OpenGgufLora(const std::filesystem::path& path, const ModelConfig& config);

}  // namespace kvasir
