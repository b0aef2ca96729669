#include "observe/trace_context.h"

#include <algorithm>
#include <span>

#include "base/random_bytes.h"
#include "base/result.h"

namespace kvasir {
namespace {

constexpr size_t kSize = 55;  // of version 00

std::optional<uint8_t> Digit(char c) {
  if (c >= '0' && c <= '9') return static_cast<uint8_t>(c - '0');
  if (c >= 'a' && c <= 'f') return static_cast<uint8_t>(c - 'a' + 10);
  return std::nullopt;
}

bool ReadHex(std::string_view text, std::span<uint8_t> bytes) {
  for (size_t i = 0; i < bytes.size(); ++i) {
    const auto high = Digit(text[2 * i]), low = Digit(text[2 * i + 1]);
    if (!high || !low) return false;
    bytes[i] = static_cast<uint8_t>(*high << 4 | *low);
  }
  return true;
}

bool IsZero(std::span<const uint8_t> bytes) {
  return std::ranges::all_of(bytes, [](uint8_t byte) { return byte == 0; });
}

}  // namespace

std::optional<TraceContext> ParseTraceparent(std::string_view header) {
  if (header.size() < kSize || header[2] != '-' || header[35] != '-' || header[52] != '-') {
    return std::nullopt;
  }
  std::array<uint8_t, 1> version, flags;
  TraceContext context;
  SpanId parent;
  if (!ReadHex(header, version) || !ReadHex(header.substr(3), context.trace) ||
      !ReadHex(header.substr(36), parent) || !ReadHex(header.substr(53), flags)) {
    return std::nullopt;
  }
  const bool fits =
      version[0] == 0 ? header.size() == kSize : header.size() == kSize || header[kSize] == '-';
  if (!fits || version[0] == 0xff || IsZero(context.trace) || IsZero(parent)) return std::nullopt;
  context.parent = parent;
  context.sampled = (flags[0] & 1) != 0;
  return context;
}

Result<TraceContext> ContextOf(std::string_view header, double sample) {
  if (auto context = ParseTraceparent(header)) return *context;
  TraceContext context;
  KV_TRY(FillRandom(context.trace));
  context.trace[0] |= uint8_t{IsZero(context.trace)};
  uint64_t number = 0;  // the last bytes decide, so that all who see the trace decide alike
  for (size_t i = 8; i < context.trace.size(); ++i) number = number << 8 | context.trace[i];
  context.sampled = static_cast<double>(number >> 11) * 0x1p-53 < sample;
  return context;
}

}  // namespace kvasir
