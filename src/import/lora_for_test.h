// An adapter with all its numbers, for tests.
#pragma once

#include <vector>

#include "base/result.h"
#include "import/lora.h"

namespace kvasir {

struct LoraNumbers {
  std::vector<float> a, b;
};

struct WholeLora : LoraAdapter {
  std::vector<LoraNumbers> read;  // of each pair
  Digest numbers{};               // of ReadLoraNumbers

  Digest DigestWith(double scale) const {
    std::vector<double> scales;
    for (const LoraPair& pair : pairs) scales.push_back(pair.scale);
    return LoraDigest(numbers, scales, scale);
  }
};

inline Result<WholeLora> ReadWhole(Result<LoraAdapter> opened) {
  if (!opened) return tl::unexpected(opened.error());
  WholeLora whole{std::move(*opened)};
  whole.read.resize(whole.pairs.size());
  const auto take = [&](size_t pair, LoraMatrix matrix, uint64_t, std::span<const float> rows) {
    std::vector<float>& to = matrix == LoraMatrix::kA ? whole.read[pair].a : whole.read[pair].b;
    to.insert(to.end(), rows.begin(), rows.end());
  };
  KV_ASSIGN(whole.numbers, ReadLoraNumbers(whole, take));
  return whole;
}

}  // namespace kvasir
