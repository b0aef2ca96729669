// The CSV of Azure's recordings.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <optional>

#include "base/bytes.h"
#include "base/result.h"
#include "testing/recording.h"

namespace kvasir {
namespace {

constexpr std::string_view kHeader = "TIMESTAMP,ContextTokens,GeneratedTokens";

// Returns the whole of `text` as a number.
template <typename T>
std::optional<T> NumberIn(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Parses "2023-11-16 18:15:46.6805900" into milliseconds since 1970; the fraction may be missing.
std::optional<uint64_t> MillisecondsOf(std::string_view text) {
  constexpr std::string_view kShape = "0000-00-00 00:00:00";
  if (text.size() < kShape.size()) return std::nullopt;
  for (size_t i = 0; i < kShape.size(); ++i) {
    if (kShape[i] != '0' && text[i] != kShape[i]) return std::nullopt;
  }
  const auto part = [&](size_t at, size_t size) {
    return NumberIn<unsigned>(text.substr(at, size));
  };
  const auto year = part(0, 4), month = part(5, 2), day = part(8, 2);
  const auto hour = part(11, 2), minute = part(14, 2);
  const auto second = NumberIn<double>(text.substr(17));
  if (!year || !month || !day || !hour || !minute || !second) return std::nullopt;
  const std::chrono::year_month_day date(std::chrono::year(static_cast<int>(*year)),
                                         std::chrono::month(*month), std::chrono::day(*day));
  const bool is_time = *hour < 24 && *minute < 60 && *second >= 0 && *second < 61;
  if (!date.ok() || *year < 1970 || !is_time) return std::nullopt;
  const auto days = std::chrono::sys_days(date).time_since_epoch().count();
  const uint64_t minutes = (static_cast<uint64_t>(days) * 24 + *hour) * 60 + *minute;
  return minutes * 60'000 + static_cast<uint64_t>(*second * 1000);
}

// Returns the request of a line, with its time since 1970.
Result<RecordedRequest> RequestOf(std::string_view line, const std::string& where) {
  const size_t first = line.find(','), second = line.find(',', first + 1);
  if (first == line.npos || second == line.npos) {
    return Fail(Code::kCorruption, "{}: '{}' has fewer than 3 fields ({})", where, line, kHeader);
  }
  const std::string_view time = line.substr(0, first);
  const auto milliseconds = MillisecondsOf(time);
  if (!milliseconds) {
    return Fail(Code::kCorruption,
                "{}: TIMESTAMP: '{}' is not a time such as 2023-11-16 18:15:46.6805900", where,
                time);
  }
  RecordedRequest request{.timestamp_ms = *milliseconds};
  const auto count = [&](std::string_view text, const char* field, uint32_t* out) -> Status {
    const auto value = NumberIn<uint32_t>(text);
    if (!value) return Fail(Code::kCorruption, "{}: {}: '{}' is not a count", where, field, text);
    *out = *value;
    return {};
  };
  KV_TRY(count(line.substr(first + 1, second - first - 1), "ContextTokens", &request.input_tokens));
  KV_TRY(count(line.substr(second + 1), "GeneratedTokens", &request.output_tokens));
  return request;
}

}  // namespace

Result<std::vector<RecordedRequest>> ParseAzureRecording(std::string_view text,
                                                         const std::string& file) {
  std::vector<RecordedRequest> requests;
  uint64_t begin_ms = 0;
  uint32_t next_block = 0;
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.remove_suffix(1);
    const std::string where = fmt::format("{} line {}", file, number);
    if (number == 1) {
      if (line == kHeader) continue;
      return Fail(Code::kCorruption, "{}: '{}' is not the header {}", where, line, kHeader);
    }
    if (line.empty()) continue;
    KV_ASSIGN(RecordedRequest request, RequestOf(line, where));
    if (requests.empty()) begin_ms = request.timestamp_ms;
    const uint64_t before_ms = requests.empty() ? 0 : requests.back().timestamp_ms;
    request.timestamp_ms = std::max(request.timestamp_ms, begin_ms + before_ms) - begin_ms;
    request.block_ids.resize(CeilDiv(request.input_tokens, kRecordedBlockTokens));
    for (uint32_t& block : request.block_ids) block = next_block++;
    requests.push_back(std::move(request));
  }
  return requests;
}

}  // namespace kvasir
