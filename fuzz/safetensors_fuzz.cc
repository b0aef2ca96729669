// Runs a file's bytes through the safetensors parser. The result must be an error, or tensors
// inside the bytes.
#include <cstdint>

#include "base/check.h"
#include "fuzz_target.h"
#include "import/safetensors.h"

KV_FUZZ_TARGET(safetensors)(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto tensors = kvasir::ParseSafetensors(bytes, "fuzz");
  if (!tensors) {
    KV_CHECK(!tensors.error().message.empty());
    return 0;
  }
  for (const kvasir::StoredTensor& tensor : *tensors) {
    if (tensor.bytes.empty()) continue;
    KV_CHECK(tensor.bytes.data() >= bytes.data());
    KV_CHECK(tensor.bytes.data() + tensor.bytes.size() <= bytes.data() + bytes.size());
  }
  return 0;
}
