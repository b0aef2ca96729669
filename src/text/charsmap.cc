#include "text/charsmap.h"

#include "base/result.h"
#include "base/utf8.h"

namespace kvasir {
namespace {

constexpr size_t kMaxReplacement = 64;  // bytes; NFKC's longest has 33
constexpr uint32_t kLeaf = uint32_t{1} << 31;

uint32_t U32(std::string_view bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = 4; i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[at + i]);
  return value;
}

// Reads Darts-clone's unit: a label and where its children begin, or a value (kLeaf is set).
bool HasLeaf(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t LabelOf(uint32_t unit) { return unit & (kLeaf | 0xFF); }
uint32_t OffsetOf(uint32_t unit) { return unit >> 10 << ((unit & 0x200) >> 6); }

}  // namespace

Result<Charsmap> Charsmap::Parse(std::string_view bytes, const std::string& file) {
  Charsmap map;
  if (bytes.empty()) return map;
  const auto damaged = [&](size_t at, const char* what) {
    return Fail(Code::kCorruption,
                "{}: the table of normalisation (precompiled_charsmap) is damaged at byte {} of "
                "{}: {}; fetch the file again",
                file, at, bytes.size(), what);
  };
  if (bytes.size() < 4) return damaged(0, "it has no size");
  const size_t trie_bytes = U32(bytes, 0);
  if (trie_bytes % 4 != 0 || trie_bytes == 0 || trie_bytes > bytes.size() - 4) {
    return damaged(0, "the size of its trie is wrong");
  }
  map.texts_ = bytes.substr(4 + trie_bytes);
  if (map.texts_.empty() || map.texts_.back() != '\0') {
    return damaged(bytes.size(), "its last text has no end");
  }
  const size_t invalid = FirstInvalidUtf8(map.texts_);
  if (invalid != map.texts_.size()) return damaged(4 + trie_bytes + invalid, "not UTF-8");
  map.trie_.resize(trie_bytes / 4);
  for (size_t i = 0; i < map.trie_.size(); ++i) {
    const size_t at = 4 + 4 * i;
    const uint32_t unit = map.trie_[i] = U32(bytes, at);
    if ((unit & kLeaf) == 0) continue;
    const size_t text = unit & ~kLeaf;
    if (text >= map.texts_.size() || ContinuesChar(map.texts_[text])) {
      return damaged(at, "it points to no text");
    }
    if (map.texts_.find('\0', text) - text > kMaxReplacement) {
      return Fail(Code::kUnsupported,
                  "{}: the table of normalisation (precompiled_charsmap) replaces a text by more "
                  "than {} bytes",
                  file, kMaxReplacement);
    }
  }
  return map;
}

std::optional<Charsmap::Match> Charsmap::Find(std::string_view text, bool first) const {
  std::optional<Match> found;
  if (trie_.empty()) return found;
  size_t at = OffsetOf(trie_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    at ^= byte;
    if (byte == 0 || at >= trie_.size()) break;
    const uint32_t unit = trie_[at];
    if (LabelOf(unit) != byte) break;
    at ^= OffsetOf(unit);
    if (!HasLeaf(unit) || at >= trie_.size() || (trie_[at] & kLeaf) == 0) continue;
    const size_t begin = trie_[at] & ~kLeaf;
    found = {i + 1, std::string_view(texts_).substr(begin, texts_.find('\0', begin) - begin)};
    if (first) break;
  }
  return found;
}

}  // namespace kvasir
