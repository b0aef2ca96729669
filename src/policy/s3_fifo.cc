#include "policy/s3_fifo.h"

#include <algorithm>

#include "base/check.h"

namespace kvasir {
namespace {

uint64_t NumCounts(const EvictionLimits& limits, uint32_t num_sections) {
  return uint64_t{num_sections} * limits.num_groups * (uint64_t{limits.num_namespaces} + 1);
}

// Returns as many as main holds: nine tenths of the blocks.
uint32_t GhostWindow(const EvictionLimits& limits) {
  return limits.num_blocks - limits.num_blocks / 10;
}

}  // namespace

uint64_t S3Fifo::BytesFor(const EvictionLimits& limits) {
  return EvictionQueue::BytesFor(limits, kNumSections) + GhostSet::BytesFor(GhostWindow(limits)) +
         limits.num_blocks * sizeof(State) + NumCounts(limits, kNumSections) * sizeof(uint32_t);
}

uint64_t S3Fifo::allocated_bytes() const {
  return queue_.allocated_bytes() + ghosts_.allocated_bytes() + states_.capacity() * sizeof(State) +
         counts_.capacity() * sizeof(uint32_t);
}

S3Fifo::S3Fifo(const EvictionLimits& limits)
    : limits_(limits),
      queue_(limits, kNumSections),
      ghosts_(GhostWindow(limits)),
      states_(limits.num_blocks),
      counts_(NumCounts(limits, kNumSections)) {}

size_t S3Fifo::CountIndex(Section section, LayerGroupId group, uint32_t ns) const {
  const uint32_t row = section * limits_.num_groups + static_cast<uint32_t>(group);
  return size_t{row} * (limits_.num_namespaces + 1) + ns;
}

void S3Fifo::Place(State& state, Section section) {
  state.section = section;
  state.place = ++last_place_;
  ++counts_[CountIndex(section, state.group, static_cast<uint32_t>(state.ns))];
  ++counts_[CountIndex(section, state.group, limits_.num_namespaces)];
}

void S3Fifo::Unplace(State& state) {
  --counts_[CountIndex(state.section, state.group, static_cast<uint32_t>(state.ns))];
  --counts_[CountIndex(state.section, state.group, limits_.num_namespaces)];
  state.section = kUnknown;
}

void S3Fifo::Enqueue(BlockId id, const State& state) {
  queue_.Insert(id, state.section, state.ns, state.group, state.place);
}

void S3Fifo::OnInserted(BlockId id, const BlockFacts& facts) {
  KV_CHECK(static_cast<size_t>(id) < states_.size() && Of(id).section == kUnknown);
  KV_CHECK(static_cast<uint32_t>(facts.ns) < limits_.num_namespaces &&
           static_cast<uint32_t>(facts.group) < limits_.num_groups);
  Of(id) = {.content = facts.content,
            .place = 0,
            .ns = facts.ns,
            .group = facts.group,
            .hits = facts.hits,
            .uses = 0};
  Place(Of(id), ghosts_.Take(facts.content) ? kMain : kSmall);
}

void S3Fifo::OnEvictable(BlockId id, const BlockFacts& facts) {
  State& state = Of(id);
  KV_CHECK(state.section != kUnknown);
  const uint32_t uses = std::min(facts.hits - state.hits, kMaxUses) + state.uses;
  state.uses = static_cast<uint8_t>(std::min(uses, kMaxUses));
  state.hits = facts.hits;
  Enqueue(id, state);
}

void S3Fifo::OnHeld(BlockId id) { queue_.Remove(id); }

void S3Fifo::OnEvicted(BlockId id) {
  queue_.Remove(id);
  if (Of(id).section == kSmall) ghosts_.Add(Of(id).content);
  Unplace(Of(id));
}

void S3Fifo::OnForgotten(BlockId id) {
  KV_CHECK(Of(id).section != kUnknown);
  if (queue_.contains(id)) queue_.Remove(id);
  Unplace(Of(id));
}

std::optional<BlockId> S3Fifo::Victim(const EvictionScope& scope) {
  while (true) {
    const auto small = queue_.First(kSmall, scope);
    const auto main = queue_.First(kMain, scope);
    const bool from_small = small && (!main || SmallHasItsShare(scope));
    const auto oldest = from_small ? small : main;
    if (!oldest) return std::nullopt;
    State& state = Of(*oldest);
    if (state.uses <= (from_small ? 1 : 0)) return oldest;
    // The paper clears the uses of a block that moves to main.
    state.uses = from_small ? 0 : state.uses - 1;
    queue_.Remove(*oldest);
    Unplace(state);
    Place(state, kMain);
    Enqueue(*oldest, state);
  }
}

uint64_t S3Fifo::Count(Section section, const EvictionScope& scope) const {
  uint64_t count = 0;
  const auto add = [&](LayerGroupId group) {
    if (!scope.namespaces) {
      count += counts_[CountIndex(section, group, limits_.num_namespaces)];
      return;
    }
    for (const NamespaceId ns : *scope.namespaces) {
      count += counts_[CountIndex(section, group, static_cast<uint32_t>(ns))];
    }
  };
  if (scope.groups) {
    for (const LayerGroupId group : *scope.groups) add(group);
  } else {
    for (uint32_t group = 0; group < limits_.num_groups; ++group) add(LayerGroupId{group});
  }
  return count;
}

bool S3Fifo::SmallHasItsShare(const EvictionScope& scope) const {
  const uint64_t small = Count(kSmall, scope);
  return small * 10 >= small + Count(kMain, scope);
}

void S3Fifo::CheckInvariants() const {
  queue_.CheckInvariants();
  std::vector<uint32_t> counts(counts_.size());
  for (uint32_t i = 0; i < states_.size(); ++i) {
    const State& state = states_[i];
    KV_CHECK(state.section != kUnknown || !queue_.contains(BlockId{i}));
    KV_CHECK(state.uses <= kMaxUses && state.place <= last_place_);
    if (state.section == kUnknown) continue;
    ++counts[CountIndex(state.section, state.group, static_cast<uint32_t>(state.ns))];
    ++counts[CountIndex(state.section, state.group, limits_.num_namespaces)];
  }
  KV_CHECK(counts == counts_);
}

}  // namespace kvasir
