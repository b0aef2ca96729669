#include "format/kv_format.h"

#include <iterator>
#include <utility>

#include "base/ascii.h"
#include "base/bytes.h"
#include "base/check.h"
#include "kvasir/plan.h"

namespace kvasir {
namespace {

constexpr KvFormatTraits kTraits[] = {{"f32", 32, 1, false, false, KvMath::kFloats},
                                      {"f16", 16, 1, false, false, KvMath::kFloats},
                                      {"bf16", 16, 1, false, false, KvMath::kFloats},
                                      {"fp8_e4m3", 8, 1, true, false, KvMath::kFloats},
                                      {"fp8_e5m2", 8, 1, true, false, KvMath::kFloats},
                                      {"int8", 8, 1, true, false, KvMath::kIntegers},
                                      {"int4", 4, 1, true, true, KvMath::kIntegers},
                                      {"nf4", 4, 1, true, true, KvMath::kIntegers}};

// Does what ParseKvFormats does, where `parse` knows the name of one format.
std::optional<KvFormats> ParseWith(std::optional<KvFormat> (*parse)(std::string_view),
                                   std::string_view text) {
  if (const auto both = parse(text)) return KvFormats(*both);
  const size_t comma = text.find(',');
  if (comma == std::string_view::npos) return std::nullopt;
  std::optional<KvFormat> k, v;
  for (std::string_view part : {text.substr(0, comma), text.substr(comma + 1)}) {
    if (part.starts_with("k=")) k = parse(part.substr(2));
    if (part.starts_with("v=")) v = parse(part.substr(2));
  }
  if (!k || !v) return std::nullopt;
  return KvFormats(*k, *v);
}

std::optional<KvFormat> SimilarKvFormat(std::string_view name) {
  static constexpr std::pair<std::string_view, KvFormat> kOthers[] = {
      {"fp32", KvFormat::kF32},
      {"float32", KvFormat::kF32},
      {"float", KvFormat::kF32},
      {"fp16", KvFormat::kF16},
      {"float16", KvFormat::kF16},
      {"half", KvFormat::kF16},
      {"bfloat16", KvFormat::kBf16},
      {"fp8", KvFormat::kFp8E4m3},
      {"fp8_e4m3fn", KvFormat::kFp8E4m3},
      {"e4m3", KvFormat::kFp8E4m3},
      {"e5m2", KvFormat::kFp8E5m2},
      {"q8_0", KvFormat::kInt8},
      {"q8", KvFormat::kInt8},
      {"i8", KvFormat::kInt8},
      {"q4_0", KvFormat::kInt4},
      {"q4_1", KvFormat::kInt4},
      {"q4", KvFormat::kInt4},
      {"i4", KvFormat::kInt4},
      {"iq4_nl", KvFormat::kNf4},
  };
  const std::string lower = LowerAscii(name);
  if (const auto ours = ParseKvFormat(lower)) return ours;
  for (const auto& [other, format] : kOthers) {
    if (other == lower) return format;
  }
  return std::nullopt;
}

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

std::string KvFormatNames() {
  std::string names;
  for (const KvFormatTraits& traits : kTraits) {
    names += (names.empty() ? "" : ", ") + std::string(traits.name);
  }
  return names;
}

std::vector<std::string> KvFormatList() {
  std::vector<std::string> names;
  for (const KvFormatTraits& traits : kTraits) names.emplace_back(traits.name);
  return names;
}

std::optional<KvFormats> ParseKvFormats(std::string_view text) {
  return ParseWith(ParseKvFormat, text);
}

std::optional<KvFormats> SimilarKvFormats(std::string_view text) {
  return ParseWith(SimilarKvFormat, text);
}

std::string NameOf(const KvFormats& formats) {
  const std::string k(TraitsOf(formats.k).name), v(TraitsOf(formats.v).name);
  return formats.k == formats.v ? k : "k=" + k + ",v=" + v;
}

uint32_t KeyDims(KvFormat format, uint32_t head_dim) {
  if (TraitsOf(format).math == KvMath::kFloats) return head_dim;
  return static_cast<uint32_t>(RoundUp(head_dim, TraitsOf(format).bits == 4 ? 8 : 2));
}

uint32_t ValueStride(KvFormat format, uint32_t head_dim) {
  return static_cast<uint32_t>(RoundUp(head_dim, TraitsOf(format).bits == 4 ? 32 : 16));
}

}  // namespace kvasir
