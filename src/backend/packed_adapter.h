// PackedAdapter: an adapter's matrices repacked into panels of 16 outputs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/arena.h"
#include "base/digest.h"
#include "import/lora.h"
#include "kvasir/status.h"
#include "tensor/weight_format.h"

namespace kvasir {

// The products of a layer that have one input each: q, k and v; o; gate and up; down.
enum class AdapterInput : uint8_t { kQkv, kO, kGateUp, kDown };
inline constexpr uint32_t kNumAdapterInputs = 4;
inline constexpr uint32_t kMaxAdapterOutputs = 3;  // matrices of one input

// The change of one matrix: y += factor * B t, where t are `rank` of the numbers that A gives.
struct PackedPair {
  const std::byte* b = nullptr;  // panels of [out, rank]; nullptr: the matrix is not changed
  uint32_t rank = 0, out = 0;
  uint32_t first = 0;  // of t
  double scale = 1;    // of the file
};

// What changes the products of one input. A of all its matrices follow each other, so that one
// product gives t of all of them.
struct PackedInput {
  const std::byte* a = nullptr;  // panels of [rank, in] of each pair; nullptr: no change
  uint32_t panels = 0, in = 0;
  std::array<PackedPair, kMaxAdapterOutputs> pairs;  // in the order of AdapterInput's comment
};

// Numbers stay as they were stored, f32, f16 or bf16: kernels widen them exactly, so the bits of a
// row are the same, and half the bytes are read. Immutable; thread-safe.
class PackedAdapter {
 public:
  // Returns what Create allocates, exactly. O(pairs).
  static uint64_t BytesFor(const LoraAdapter& adapter);
  // Reads the numbers and packs them. kExhausted: the memory is refused; other errors as
  // ReadLoraNumbers. O(numbers). REQUIRES: its layers are below num_layers.
  static Result<std::shared_ptr<const PackedAdapter>> Create(const LoraAdapter& adapter,
                                                             uint32_t num_layers);

  const PackedInput& At(uint32_t layer, AdapterInput input) const {
    return layers_[layer][static_cast<size_t>(input)];
  }
  // Returns LoraDigest of it, applied with `scale`.
  Digest DigestWith(double scale) const { return LoraDigest(numbers_, pair_scales_, scale); }
  WeightFormat format() const { return format_; }
  uint64_t bytes() const { return arena_.used(); }

 private:
  using Layer = std::array<PackedInput, kNumAdapterInputs>;
  struct Panels {
    std::byte *a, *b;
  };
  static std::vector<Panels> Lay(const LoraAdapter& adapter, Arena& arena,
                                 std::vector<Layer>& layers);

  WeightFormat format_ = WeightFormat::kF32;
  Digest numbers_{};  // of ReadLoraNumbers
  std::vector<double> pair_scales_;
  std::vector<Layer> layers_;
  Arena arena_;
};

// An adapter that rows are computed with, and how much of it. Rows with the same list get
// the same bits.
struct AppliedAdapter {
  const PackedAdapter* adapter;
  double scale;
  Digest digest;  // PackedAdapter::DigestWith(scale)
};

}  // namespace kvasir
