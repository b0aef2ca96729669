// Slot: a place that a tensor of a model goes to; SlotTensors: the tensors of a layer by their
// slots.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "base/check.h"
#include "import/tensor_view.h"

namespace kvasir {

enum class Slot : uint8_t {
  kEmbedding,
  kFinalNorm,
  kFinalNormBias,
  kLmHead,
  kPositions,
  kAttentionNorm,
  kAttentionNormBias,
  kAttentionPostNorm,
  kFfnNorm,
  kFfnNormBias,
  kFfnPostNorm,
  kQ,
  kK,
  kV,
  kO,
  kQBias,
  kKBias,
  kVBias,
  kOBias,
  kQNorm,  // of each head
  kKNorm,
  kAllQNorm,  // of all heads together
  kAllKNorm,
  kGate,
  kUp,
  kDown,
  kGateBias,
  kUpBias,
  kDownBias,
};
inline constexpr size_t kNumSlots = static_cast<size_t>(Slot::kDownBias) + 1;

class SlotTensors {
 public:
  // nullptr: the layer has none.
  const MatrixSource* Find(Slot slot) const {
    const auto& tensor = tensors_[static_cast<size_t>(slot)];
    return tensor ? &*tensor : nullptr;
  }
  const MatrixSource& operator[](Slot slot) const {  // REQUIRES: the layer has one
    KV_CHECK(Find(slot) != nullptr);
    return *tensors_[static_cast<size_t>(slot)];
  }
  MatrixSource& operator[](Slot slot) {
    KV_CHECK(Find(slot) != nullptr);
    return *tensors_[static_cast<size_t>(slot)];
  }
  void Set(Slot slot, MatrixSource tensor) {
    tensors_[static_cast<size_t>(slot)] = std::move(tensor);
  }
  // fn(slot, tensor) for each that there is, in the order of Slot.
  template <typename Fn>
  void ForEach(Fn fn) const {
    for (size_t i = 0; i < kNumSlots; ++i) {
      if (tensors_[i]) fn(static_cast<Slot>(i), *tensors_[i]);
    }
  }

 private:
  std::array<std::optional<MatrixSource>, kNumSlots> tensors_;
};

}  // namespace kvasir
