// Reading the numbers of an adapter, and digests of them.
#include <algorithm>
#include <bit>

#include "base/result.h"
#include "import/file_watch.h"
#include "import/float_numbers.h"
#include "import/gguf_blocks.h"
#include "import/lora.h"

namespace kvasir {
namespace {

// Widens numbers [first, first + count) of a tensor to f32. False: one is not finite. REQUIRES:
// whole blocks.
bool WidenLora(const StoredTensor& tensor, uint64_t first, uint64_t count, float* to) {
  const DType dtype = *tensor.dtype;
  const std::byte* from = tensor.bytes.data() + StoredBytes(dtype, first);
  if (!IsQuantised(dtype)) {
    if (!AllFinite(dtype, from, count)) return false;
    Widen(dtype, from, count, to);
    return true;
  }
  const StoredBlock block = BlockOf(dtype);
  WeightGroup groups[256 / kGroup];
  for (uint64_t at = 0; at < count; at += block.columns, from += block.bytes) {
    if (!TakeApart(dtype, from, groups)) return false;
    for (uint64_t i = 0; i < block.columns; i += kGroup) {
      WidenGroup(dtype, groups[i / kGroup], to + at + i);
    }
  }
  return AllFinite(DType::kF32, reinterpret_cast<const std::byte*>(to), count);
}

// Returns where a row of ours is stored, as StoredRow of backend/packed_weights.cc.
uint64_t LoraRowOf(const LoraHalf& half, uint64_t row) {
  if (half.head_dim == 0) return half.first_row + row;
  const uint64_t i = row % half.head_dim, middle = half.head_dim / 2;
  return half.first_row + row - i + (i < middle ? 2 * i : 2 * (i - middle) + 1);
}

Status ReadLoraRows(const LoraHalf& half, uint64_t first, uint64_t rows, uint64_t columns,
                    float* to) {
  const uint64_t together = half.head_dim == 0 ? rows : 1;
  for (uint64_t row = 0; row < rows; row += together) {
    const uint64_t stored = LoraRowOf(half, first + row);
    if (WidenLora(half.tensor, stored * columns, together * columns, to + row * columns)) continue;
    return Fail(Code::kCorruption,
                "{}: tensor '{}' holds NaN or infinity: the file is damaged or was exported "
                "wrongly; fetch or export it again",
                half.tensor.file, half.tensor.name);
  }
  return {};
}

}  // namespace

uint64_t LoraRowBytes(const LoraAdapter& adapter) {
  uint64_t columns = 0;
  for (const LoraPair& pair : adapter.pairs) {
    columns = std::max<uint64_t>({columns, pair.in, pair.rank});
  }
  return columns * kPanelOutputs * sizeof(float);
}

Result<Digest> ReadLoraNumbers(const LoraAdapter& adapter, const TakeLoraRows& take) {
  std::vector<float> numbers(LoraRowBytes(adapter) / sizeof(float));
  Sha256 sha;
  sha.Update("kvasir adapter numbers 1\n").UpdateU64(adapter.pairs.size());
  for (size_t i = 0; i < adapter.pairs.size(); ++i) {
    const LoraPair& pair = adapter.pairs[i];
    sha.UpdateU64(pair.layer).UpdateU64(static_cast<uint64_t>(pair.target));
    sha.UpdateU64(pair.rank).UpdateU64(pair.in).UpdateU64(pair.out);
    for (const LoraMatrix matrix : {LoraMatrix::kA, LoraMatrix::kB}) {
      const bool is_a = matrix == LoraMatrix::kA;
      const uint64_t rows = is_a ? pair.rank : pair.out, columns = is_a ? pair.in : pair.rank;
      for (uint64_t first = 0; first < rows; first += kPanelOutputs) {
        const uint64_t n = std::min<uint64_t>(kPanelOutputs, rows - first);
        KV_TRY(ReadLoraRows(is_a ? pair.a : pair.b, first, n, columns, numbers.data()));
        const std::span<const float> read(numbers.data(), n * columns);
        sha.Update(std::as_bytes(read));
        take(i, matrix, first, read);
      }
    }
  }
  if (adapter.file) KV_TRY(CheckWhileLoading({&adapter.file, 1}));
  return sha.Finish();
}

Digest LoraDigest(const Digest& numbers, std::span<const double> pair_scales, double scale) {
  Sha256 sha;
  sha.Update("kvasir adapter 1\n").Update(std::as_bytes(std::span(numbers)));
  for (const double of_pair : pair_scales) {
    sha.UpdateU64(std::bit_cast<uint32_t>(LoraFactor(of_pair, scale)));
  }
  return sha.Finish();
}

}  // namespace kvasir
