#include "observe/trace_context.h"

#include <algorithm>
#include <span>

#include "base/hex.h"
#include "base/random_bytes.h"
#include "base/result.h"

namespace kvasir {
namespace {

constexpr size_t kSize = 55;  // of version 00

bool IsZero(std::span<const uint8_t> bytes) {
  return std::ranges::all_of(bytes, [](uint8_t byte) { return byte == 0; });
}

}  // namespace

std::optional<TraceContext> ParseTraceparent(std::string_view header) {
  if (header.size() < kSize || header[2] != '-' || header[35] != '-' || header[52] != '-') {
    return std::nullopt;
  }
  const auto version = FromHex<1>(header.substr(0, 2), HexCase::kLower);
  const auto trace = FromHex<sizeof(TraceId)>(header.substr(3, 32), HexCase::kLower);
  const auto parent = FromHex<sizeof(SpanId)>(header.substr(36, 16), HexCase::kLower);
  const auto flags = FromHex<1>(header.substr(53, 2), HexCase::kLower);
  if (!version || !trace || !parent || !flags) return std::nullopt;
  const bool fits =
      (*version)[0] == 0 ? header.size() == kSize : header.size() == kSize || header[kSize] == '-';
  if (!fits || (*version)[0] == 0xff || IsZero(*trace) || IsZero(*parent)) return std::nullopt;
  return TraceContext{*trace, *parent, ((*flags)[0] & 1) != 0};
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
