#include "base/shares.h"

#include <algorithm>

#include "base/check.h"

namespace kvasir {

void Shares::SetWeights(const Weights& weights) {
  for (auto& [owner, own] : owners_) own = {.used = own.used};
  are_divided_ = weights.size() > 1;
  open_ = total_;
  double sum = 0;
  for (const auto& [owner, weight] : weights) sum += weight;
  for (const auto& [owner, weight] : weights) {
    Own& own = owners_[owner];
    own.is_named = true;
    const uint64_t half = total_ / 2;
    const double part = static_cast<double>(half) * (weight / sum);
    own.kept = std::min(std::max(static_cast<uint64_t>(part), least_), total_);
    open_ -= std::min(own.kept, open_);
  }
  std::erase_if(owners_, [](const auto& one) { return !one.second.is_named && !one.second.used; });
  beyond_ = 0;
  for (const auto& [owner, own] : owners_) beyond_ += own.beyond();
}

bool Shares::Fits(const Digest& owner, uint64_t count, uint64_t given) const {
  const auto found = owners_.find(owner);
  Own own = found == owners_.end() ? Own() : found->second;
  const uint64_t before = own.beyond();
  given = std::min(given, own.used);
  own.used -= given;
  const bool is_kept = are_divided_ && count <= own.kept && own.used <= own.kept - count;
  const uint64_t all = used_ - given;
  const uint64_t used = is_kept ? all - std::min(brief_, all) : all;
  if (used > total_ || count > total_ - used) return false;
  if (!are_divided_ || is_kept) return true;
  own.used += count;
  return own.beyond() <= open_ - open_ / 2 && beyond_ - before + own.beyond() <= open_;
}

bool Shares::Take(const Digest& owner, uint64_t count) {
  if (!Fits(owner, count, 0)) return false;
  Add(owner, count);
  return true;
}

void Shares::Add(const Digest& owner, uint64_t count) {
  Own& own = owners_[owner];
  beyond_ -= own.beyond();
  own.used += count;
  used_ += count;
  beyond_ += own.beyond();
}

void Shares::AddBriefly(const Digest& owner, uint64_t count) {
  Add(owner, count);
  brief_ += count;
}

void Shares::Give(const Digest& owner, uint64_t count) {
  const auto found = owners_.find(owner);
  KV_CHECK(found != owners_.end() && found->second.used >= count);
  Own& own = found->second;
  beyond_ -= own.beyond();
  own.used -= count;
  used_ -= count;
  beyond_ += own.beyond();
  if (!own.is_named && own.used == 0) owners_.erase(found);
}

uint64_t Shares::used_by(const Digest& owner) const {
  const auto found = owners_.find(owner);
  return found == owners_.end() ? 0 : found->second.used;
}

uint64_t Shares::kept_for(const Digest& owner) const {
  if (!are_divided_) return total_;
  const auto found = owners_.find(owner);
  return found == owners_.end() ? 0 : found->second.kept;
}

}  // namespace kvasir
