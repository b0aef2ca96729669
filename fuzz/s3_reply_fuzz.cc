// Reads bytes as the XML of an S3 store: an error's words are printable and short, and a list has
// no more names than were asked for.
#include <algorithm>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "fuzz_target.h"
#include "remote/s3_reply.h"

namespace kvasir {
namespace {

void ReadXml(std::string_view xml) {
  constexpr size_t kMostListed = 4;
  const std::string words = S3ErrorWords(500, xml);
  KV_CHECK(!words.empty() && words.size() <= 300);
  KV_CHECK(std::ranges::all_of(words, [](char c) { return c >= ' ' && c <= '~'; }));
  const auto list = ReadS3List(xml, kMostListed);
  if (!list) return;
  KV_CHECK(list->names.size() <= kMostListed);
  for (const std::string& name : list->names) KV_CHECK(!name.empty() && name.size() < xml.size());
}

}  // namespace
}  // namespace kvasir

KV_FUZZ_TARGET(s3_reply)(const uint8_t* data, size_t size) {
  kvasir::ReadXml({reinterpret_cast<const char*>(data), size});
  return 0;
}
