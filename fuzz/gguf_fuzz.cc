// Runs a file's bytes through the GGUF parser, the importer and the packing of weights. The result
// must be an error, or a model whose tensors are inside the bytes.
#include <cstdint>

#include "backend/packed_weights.h"
#include "base/check.h"
#include "fuzz_target.h"
#include "import/architecture.h"
#include "import/gguf_importer.h"

KV_FUZZ_TARGET(gguf)(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  auto gguf = kvasir::ParseGguf(bytes, "fuzz");
  if (!gguf) {
    KV_CHECK(!gguf.error().message.empty());
    return 0;
  }
  for (const kvasir::StoredTensor& tensor : gguf->tensors) {
    if (tensor.bytes.empty()) continue;
    KV_CHECK(tensor.bytes.data() >= bytes.data());
    KV_CHECK(tensor.bytes.data() + tensor.bytes.size() <= bytes.data() + bytes.size());
  }
  const auto model = kvasir::ModelFromGguf(std::move(*gguf), "fuzz");
  if (!model) return 0;
  kvasir::ForEachLayerMatrix(*model, [&](const kvasir::TensorView& view) {
    KV_CHECK(view.data >= bytes.data());
    KV_CHECK(view.data + view.num_bytes() <= bytes.data() + bytes.size());
  });
  // Small models are packed, which decodes every block of every type.
  const kvasir::PackedPlan plan = kvasir::PlanPacked(*model, {});
  if (plan.arena_bytes > (uint64_t{64} << 20)) return 0;
  kvasir::ThreadPool pool(1, nullptr);
  const auto packed = kvasir::Pack(*model, {}, pool, {});
  KV_CHECK(packed ? packed->arena.used() == plan.arena_bytes : !packed.error().message.empty());
  return 0;
}
