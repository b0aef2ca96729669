// AdapterSet: the adapters that a request is computed with.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/fault.h"
#include "cache/identity.h"
#include "kvasir/adapters.h"
#include "model/runner.h"
#include "schedule/scheduler_options.h"

namespace kvasir {

// How many requests have an adapter. Relaxed: for statistics alone.
struct AdapterUses {
  std::atomic<uint32_t> waiting{0}, running{0};
};

// Immutable, and keeps its adapters in memory: one that is unloaded stays until the last request
// with it ends. Thread-safe.
struct AdapterSet {
  std::vector<AppliedAdapter> applied;  // by ascending digest; at least one
  std::vector<std::shared_ptr<const PackedAdapter>> held;
  std::vector<AdapterChoice> choices;
  std::vector<std::shared_ptr<AdapterUses>> uses;  // of each choice
  std::vector<UsedAdapter> used;                   // for the receipt, in the order of `choices`
  Digest digest{};  // over the digests of `applied`: IdentityParts::adapter
  // The Identities of KV that is computed with them: rotated as usual, and by the long factors of
  // RoPE longrope.
  Identity identity{}, long_identity{};
};

// What a request has of a set: counts it as one that waits, then as one that runs. Movable.
class AdapterSeat {
 public:
  AdapterSeat() = default;  // of a request without adapters
  explicit AdapterSeat(std::shared_ptr<const AdapterSet> set) : set_(std::move(set)) {
    Count(&AdapterUses::waiting, 1);
  }
  AdapterSeat(AdapterSeat&& other) noexcept
      : set_(std::exchange(other.set_, nullptr)), runs_(other.runs_) {}
  AdapterSeat& operator=(AdapterSeat&& other) noexcept {
    std::swap(set_, other.set_);
    std::swap(runs_, other.runs_);
    return *this;
  }
  ~AdapterSeat() { Count(runs_ ? &AdapterUses::running : &AdapterUses::waiting, -1u); }

  void Run() {
    if (std::exchange(runs_, true)) return;
    Count(&AdapterUses::waiting, -1u);
    Count(&AdapterUses::running, 1);
  }
  const AdapterSet* get() const { return set_.get(); }  // nullptr: no adapters

 private:
  void Count(std::atomic<uint32_t> AdapterUses::*uses, uint32_t change) const {
    if (!set_) return;
    for (const auto& each : set_->uses) (*each.*uses).fetch_add(change, std::memory_order_relaxed);
  }

  std::shared_ptr<const AdapterSet> set_;
  bool runs_ = false;
};

// Returns the Identity of a sequence's KV. `adapters`: nullptr where it has none.
inline const Identity& IdentityOf(const SchedulerOptions& options, const AdapterSet* adapters,
                                  bool is_long) {
  if (adapters != nullptr && !FaultActive(Fault::kForeignAdapter))
    return is_long ? adapters->long_identity : adapters->identity;
  return is_long ? options.long_rope->identity : options.identity;
}

}  // namespace kvasir
