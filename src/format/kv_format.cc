#include "format/kv_format.h"

#include <iterator>

#include "base/check.h"

namespace kvasir {
namespace {

constexpr KvFormatTraits kTraits[] = {{"f32", 32, 1}, {"f16", 16, 1}, {"bf16", 16, 1}};

}  // namespace

const KvFormatTraits& TraitsOf(KvFormat format) {
  const auto index = static_cast<uint32_t>(format) - 1;
  KV_CHECK(index < std::size(kTraits));
  return kTraits[index];
}

std::optional<KvFormat> ParseKvFormat(std::string_view name) {
  for (uint32_t i = 0; i < std::size(kTraits); ++i) {
    if (kTraits[i].name == name) return static_cast<KvFormat>(i + 1);
  }
  return std::nullopt;
}

}  // namespace kvasir
