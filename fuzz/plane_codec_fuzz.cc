// Codes numbers and gets them back, in rooms of any size; decodes bytes of another origin. Neither
// touches other memory, nor leaves anything in the codec's.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "base/check.h"
#include "byte_source.h"
#include "fuzz_target.h"
#include "remote/plane_codec.h"

namespace kvasir {
namespace {

constexpr uint32_t kMostNumbers = 1024;

void CodePlanes(const uint8_t* data, size_t size) {
  ByteSource source(data, size);
  const uint32_t num = source.Between(1, kMostNumbers);
  const uint32_t cut = source.Below(64), damage = source.Below(2);
  const auto rest = std::as_bytes(source.Rest());
  std::vector<std::byte> numbers(2 * num);
  for (size_t i = 0; i < numbers.size() && !rest.empty(); ++i) numbers[i] = rest[i % rest.size()];
  // In pieces as long as they need to be, so that a sanitizer sees what lies beyond.
  std::vector<std::byte> memory(PlaneCodec::MemoryBytes(numbers.size()) + 63);
  const size_t off = -reinterpret_cast<uintptr_t>(memory.data()) % 64;
  PlaneCodec codec(memory.data() + off, numbers.size());
  std::vector<std::byte> coded(numbers.size() - std::min<size_t>(numbers.size(), cut));
  const std::optional<uint64_t> bytes = codec.Encode(numbers, coded);
  if (bytes) {
    KV_CHECK(*bytes <= coded.size());
    coded.resize(numbers.size());
    std::vector<std::byte> less = coded;
    KV_CHECK(codec.Decode(coded.size(), coded) && coded == numbers);
    KV_CHECK(!codec.Decode(*bytes - 1, less));
  }
  // Bytes that Encode did not make, also with a length that may be right.
  std::vector<std::byte> forged = numbers;
  if (damage == 1 && num > 8) {
    const uint32_t high_bytes = num - 4 - std::min(cut, num - 5);
    std::memcpy(forged.data() + num, &high_bytes, sizeof(high_bytes));
  }
  codec.Decode(forged.size(), forged);
  // All bytes are 0: each equals the one before it. (A loop is slow with a sanitizer.)
  KV_CHECK(memory[0] == std::byte{0} &&
           std::memcmp(memory.data(), memory.data() + 1, memory.size() - 1) == 0);
}

}  // namespace
}  // namespace kvasir

KV_FUZZ_TARGET(plane_codec)(const uint8_t* data, size_t size) {
  kvasir::CodePlanes(data, size);
  return 0;
}
