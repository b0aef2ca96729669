#include "server/request_log.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/clock.h"
#include "base/log.h"

namespace kvasir {
namespace {

constexpr size_t kMaxTarget = 200;

// Returns a path without its query, which may have private text, and without control characters.
std::string LoggedPath(std::string_view target) {
  std::string text(target.substr(0, std::min(target.find('?'), kMaxTarget)));
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c <= ' ' || c > '~'; }, '?');
  return text;
}

}  // namespace

RequestLog::RequestLog(std::string_view method, std::string_view target)
    : what_(fmt::format("{} {}", method, LoggedPath(target))),
      probe_(what_ == "GET /health" || what_ == "GET /ready" || what_ == "GET /metrics"),
      start_ns_(MonotonicNs()) {}

void RequestLog::Refused(const Refusal& refusal) {
  refusal_ = " code=" + refusal.code;
  if (refusal.field) refusal_ += " field=" + *refusal.field;
}

void RequestLog::Told(const Answer& answer) {
  const Receipt& receipt = answer.receipt();
  tokens_ = fmt::format(" prompt {} cached {} generated {} ttft {:.1f} ms,", receipt.prompt_tokens,
                        receipt.cached_tokens(), answer.completion_tokens(), receipt.ttft_ms);
}

std::string RequestLog::Line(std::string_view peer, std::string_view remark) const {
  if (probe_ && status_ < 400 && !IsLogged(LogLevel::kDebug)) return "";
  const double ms = static_cast<double>(MonotonicNs() - start_ns_) / 1e6;
  return fmt::format("{} {} {}{}{} {:.1f} ms{}{}", peer, what_, status_, refusal_, tokens_, ms, id_,
                     remark);
}

}  // namespace kvasir
