#include "http/request_id.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/ascii.h"
#include "base/hex.h"
#include "base/random_bytes.h"

namespace kvasir {

bool IsRequestId(std::string_view id) {
  const auto allowed = [](char c) { return IsAsciiAlnum(c) || c == '.' || c == '_' || c == '-'; };
  return !id.empty() && id.size() <= 64 && std::ranges::all_of(id, allowed);
}

std::string MakeRequestId() {
  std::array<uint8_t, 16> bytes;
  return FillRandom(bytes) ? ToHex(bytes) : "";
}

}  // namespace kvasir
