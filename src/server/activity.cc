#include "server/activity.h"

#include "base/clock.h"

namespace kvasir {
namespace {

uint64_t MinuteNow() { return MonotonicNs() / 60'000'000'000; }

}  // namespace

TenantActivity& TenantActivity::operator+=(const TenantActivity& other) {
  answers += other.answers;
  prompt += other.prompt;
  computed += other.computed;
  reused_pool += other.reused_pool;
  reused_partial += other.reused_partial;
  reused_disk += other.reused_disk;
  reused_remote += other.reused_remote;
  generated += other.generated;
  return *this;
}

void Activity::Add(const std::string& tenant, const Receipt& receipt, uint64_t generated_tokens) {
  const TenantActivity answer{.answers = 1,
                              .prompt = receipt.prompt_tokens,
                              .computed = receipt.computed,
                              .reused_pool = receipt.reused_pool,
                              .reused_partial = receipt.reused_partial,
                              .reused_disk = receipt.reused_disk,
                              .reused_remote = receipt.reused_remote,
                              .generated = generated_tokens};
  const MutexLock lock(mutex_);
  const uint64_t number = MinuteNow();  // under the lock, so that no minute is after HourOf's
  Entry& entry = tenants_[tenant];
  entry.sums += answer;
  std::erase_if(entry.minutes,
                [&](const Minute& one) { return one.number + kHourMinutes <= number; });
  if (entry.minutes.empty() || entry.minutes.back().number < number) {
    entry.minutes.push_back({.number = number, .sums = {}});
  }
  entry.minutes.back().sums += answer;
}

TenantActivity Activity::Of(const std::string& tenant) const {
  const MutexLock lock(mutex_);
  const auto it = tenants_.find(tenant);
  return it == tenants_.end() ? TenantActivity() : it->second.sums;
}

LastHour Activity::HourOf(const std::optional<std::string_view>& tenant) const {
  LastHour hour;
  const MutexLock lock(mutex_);
  const uint64_t now = MinuteNow();
  for (const auto& [name, entry] : tenants_) {
    if (tenant && name != *tenant) continue;
    for (const Minute& minute : entry.minutes) {
      if (minute.number + kHourMinutes <= now) continue;
      hour.sums += minute.sums;
      LastHour::Minute& shown = hour.minutes[kHourMinutes - 1 - (now - minute.number)];
      shown.prompt += minute.sums.prompt;
      shown.reused += minute.sums.prompt - minute.sums.computed;
    }
  }
  return hour;
}

}  // namespace kvasir
