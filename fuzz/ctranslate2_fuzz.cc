// model.bin of CTranslate2: an error with a message, or variables inside the bytes; named, their
// rows are widened to finite numbers or to those that the file has.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "fuzz_target.h"
#include "import/ctranslate2.h"
#include "import/float_numbers.h"

KV_FUZZ_TARGET(ctranslate2)(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto model = kvasir::ParseCt2(bytes, "fuzz");
  if (!model) {
    KV_CHECK(!model.error().message.empty());
    return 0;
  }
  for (const auto& [name, variable] : model->variables) {
    if (variable.bytes.empty()) continue;
    KV_CHECK(variable.bytes.data() >= bytes.data());
    KV_CHECK(variable.bytes.data() + variable.bytes.size() <= bytes.data() + bytes.size());
  }
  const auto weights = kvasir::DescribeCt2(*model, "fuzz");
  if (!weights) {
    KV_CHECK(!weights.error().message.empty());
    return 0;
  }
  KV_CHECK(weights->shape.hidden_size > 0 && weights->shape.decoder.layers > 0);
  for (const kvasir::Ct2Tensor& tensor : weights->tensors) {
    KV_CHECK(tensor.row_begin + tensor.shape[0] <= tensor.weights.shape[0]);
    const kvasir::StoredTensor stored = kvasir::StoredTensorOf(tensor, "fuzz");
    const uint64_t columns = tensor.shape.size() == 1 ? 1 : tensor.shape[1];
    std::vector<float> row(columns);
    const uint64_t last = tensor.shape[0] - 1;
    if (!stored.integers) {
      const uint64_t row_bytes = stored.bytes.size() / tensor.shape[0];
      kvasir::Widen(*stored.dtype, stored.bytes.data() + last * row_bytes, columns, row.data());
      continue;
    }
    kvasir::WidenRow(*stored.integers, last, columns, row.data());
    for (const float x : row) KV_CHECK(std::isfinite(x) || std::abs(x) > 1e30f);
  }
  return 0;
}
