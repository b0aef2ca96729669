#include "text/byte_level.h"

#include <array>
#include <string>

#include "base/utf8.h"

namespace kvasir {
namespace {

constexpr char32_t kNumChars = 256 + 68;  // 68 bytes are not printable in Latin-1

struct Alphabet {
  std::array<std::string, 256> chars;
  std::array<int16_t, kNumChars> bytes;  // -1 if none

  Alphabet() {
    bytes.fill(-1);
    char32_t next = 256;
    for (int byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
      const char32_t c = printable ? static_cast<char32_t>(byte) : next++;
      AppendUtf8(c, &chars[static_cast<size_t>(byte)]);
      bytes[c] = static_cast<int16_t>(byte);
    }
  }
};

const Alphabet& TheAlphabet() {
  static const Alphabet* const alphabet = new Alphabet;
  return *alphabet;
}

}  // namespace

std::string_view ByteLevelChar(uint8_t byte) { return TheAlphabet().chars[byte]; }

std::optional<uint8_t> ByteOfChar(char32_t c) {
  if (c >= kNumChars || TheAlphabet().bytes[c] < 0) return std::nullopt;
  return static_cast<uint8_t>(TheAlphabet().bytes[c]);
}

}  // namespace kvasir
