// Slot: a place that a tensor of a model goes to; SlotTensors: the tensors of a layer by their
// slots.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

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
  kCrossNorm,  // of attention over the source, as are the next nine
  kCrossNormBias,
  kCrossQ,
  kCrossK,
  kCrossV,
  kCrossO,
  kCrossQBias,
  kCrossKBias,
  kCrossVBias,
  kCrossOBias,
  kRouter,
  kHeadBias,
  kSourceEmbedding,  // of an encoder that does not share the decoder's
  kExpertGate,       // of each expert, as are the next two
  kExpertUp,
  kExpertDown,
};
inline constexpr size_t kNumSlots = static_cast<size_t>(Slot::kExpertDown) + 1;

// Mostly one tensor a slot; of experts one each, in their order.
class SlotTensors {
 public:
  // nullptr: the layer has none.
  const MatrixSource* Find(Slot slot) const {
    const auto& tensors = tensors_[static_cast<size_t>(slot)];
    return tensors.empty() ? nullptr : &tensors.front();
  }
  const MatrixSource& operator[](Slot slot) const {  // REQUIRES: the layer has one
    KV_CHECK(Find(slot) != nullptr);
    return tensors_[static_cast<size_t>(slot)].front();
  }
  MatrixSource& operator[](Slot slot) {
    KV_CHECK(Find(slot) != nullptr);
    return tensors_[static_cast<size_t>(slot)].front();
  }
  std::span<const MatrixSource> All(Slot slot) const { return tensors_[static_cast<size_t>(slot)]; }
  void Add(Slot slot, MatrixSource tensor) {
    tensors_[static_cast<size_t>(slot)].push_back(std::move(tensor));
  }
  // Calls fn(slot, tensor) for each that there is, in the order of Slot.
  template <typename Fn>
  void ForEach(Fn fn) const {
    for (size_t i = 0; i < kNumSlots; ++i) {
      for (const MatrixSource& tensor : tensors_[i]) fn(static_cast<Slot>(i), tensor);
    }
  }

 private:
  std::array<std::vector<MatrixSource>, kNumSlots> tensors_;
};

}  // namespace kvasir
