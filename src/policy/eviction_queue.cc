#include "policy/eviction_queue.h"

#include <bit>

#include "base/check.h"
#include "base/random.h"
#include "base/treap.h"

namespace kvasir {
namespace {

uint64_t NumLanes(const EvictionLimits& limits, uint32_t num_sections) {
  return uint64_t{num_sections} * limits.num_groups * limits.num_namespaces;
}

uint64_t Priority(uint32_t node) { return Mix64(node); }

}  // namespace

uint64_t EvictionQueue::BytesFor(const EvictionLimits& limits, uint32_t num_sections) {
  const uint64_t lanes = NumLanes(limits, num_sections);
  return limits.num_blocks * sizeof(Node) + (lanes + 2 * std::bit_ceil(lanes)) * sizeof(uint32_t);
}

uint64_t EvictionQueue::allocated_bytes() const {
  return nodes_.capacity() * sizeof(Node) +
         (roots_.capacity() + winners_.capacity()) * sizeof(uint32_t);
}

EvictionQueue::EvictionQueue(const EvictionLimits& limits, uint32_t num_sections)
    : limits_(limits),
      num_lanes_(static_cast<uint32_t>(NumLanes(limits, num_sections))),
      leaves_(std::bit_ceil(num_lanes_)),
      nodes_(limits.num_blocks),
      roots_(num_lanes_, kNone),
      winners_(size_t{2} * leaves_, kNone) {
  KV_CHECK(NumLanes(limits, num_sections) < uint32_t{1} << 30 && num_lanes_ > 0);
}

uint32_t EvictionQueue::LaneOf(uint32_t section, LayerGroupId group, uint32_t ns) const {
  return (section * limits_.num_groups + static_cast<uint32_t>(group)) * limits_.num_namespaces +
         ns;
}

bool EvictionQueue::Before(uint32_t a, uint32_t b) const {
  if (a == kNone || b == kNone) return a != kNone;
  return nodes_[a].order != nodes_[b].order ? nodes_[a].order < nodes_[b].order : a < b;
}

void EvictionQueue::Insert(BlockId id, uint32_t section, NamespaceId ns, LayerGroupId group,
                           uint64_t order) {
  const auto node = static_cast<uint32_t>(id);
  KV_CHECK(node < nodes_.size() && !contains(id));
  KV_CHECK(static_cast<uint32_t>(ns) < limits_.num_namespaces &&
           static_cast<uint32_t>(group) < limits_.num_groups);
  const uint32_t lane = LaneOf(section, group, static_cast<uint32_t>(ns));
  KV_CHECK(lane < num_lanes_);
  nodes_[node] = {.order = order, .left = kNone, .right = kNone, .lane = lane};
  uint32_t* link = &roots_[lane];
  while (*link != kNone && Priority(*link) > Priority(node)) {
    link = Before(node, *link) ? &nodes_[*link].left : &nodes_[*link].right;
  }
  const auto comes_after = [&](uint32_t other) { return Before(node, other); };
  SplitTreap(nodes_, *link, comes_after, &nodes_[node].left, &nodes_[node].right);
  *link = node;
  ++size_;
  if (Before(node, winners_[leaves_ + lane])) SetFirst(lane, node);
}

void EvictionQueue::Remove(BlockId id) {
  const auto node = static_cast<uint32_t>(id);
  KV_CHECK(node < nodes_.size() && contains(id));
  const uint32_t lane = nodes_[node].lane;
  uint32_t* link = &roots_[lane];
  while (*link != node) link = Before(node, *link) ? &nodes_[*link].left : &nodes_[*link].right;
  *link = MergeTreaps(nodes_, nodes_[node].left, nodes_[node].right, Priority);
  nodes_[node].lane = kNone;
  --size_;
  if (winners_[leaves_ + lane] == node) SetFirst(lane, Leftmost(roots_[lane]));
}

std::optional<BlockId> EvictionQueue::First(uint32_t section, const EvictionScope& scope) const {
  uint32_t first = kNone;
  const auto look_at = [&](LayerGroupId group) {
    if (!scope.namespaces) {
      const uint32_t begin = LaneOf(section, group, 0);
      first = Earlier(first, FirstOf(begin, begin + limits_.num_namespaces));
      return;
    }
    for (const NamespaceId ns : *scope.namespaces) {
      const uint32_t lane = LaneOf(section, group, static_cast<uint32_t>(ns));
      first = Earlier(first, winners_[leaves_ + lane]);
    }
  };
  if (scope.groups) {
    for (const LayerGroupId group : *scope.groups) look_at(group);
  } else {
    for (uint32_t group = 0; group < limits_.num_groups; ++group) look_at(LayerGroupId{group});
  }
  return first == kNone ? std::nullopt : std::optional(BlockId{first});
}

uint32_t EvictionQueue::FirstOf(uint32_t begin, uint32_t end) const {
  uint32_t first = kNone;
  for (begin += leaves_, end += leaves_; begin < end; begin /= 2, end /= 2) {
    if (begin % 2 == 1) first = Earlier(first, winners_[begin++]);
    if (end % 2 == 1) first = Earlier(first, winners_[--end]);
  }
  return first;
}

void EvictionQueue::SetFirst(uint32_t lane, uint32_t node) {
  uint32_t i = leaves_ + lane;
  winners_[i] = node;
  for (i /= 2; i > 0; i /= 2) winners_[i] = Earlier(winners_[2 * i], winners_[2 * i + 1]);
}

uint32_t EvictionQueue::Leftmost(uint32_t tree) const {
  while (tree != kNone && nodes_[tree].left != kNone) tree = nodes_[tree].left;
  return tree;
}

// Walks the lane in order; returns how many blocks it has.
uint32_t EvictionQueue::CheckLane(uint32_t lane) const {
  std::vector<uint32_t> path;
  uint32_t count = 0;
  uint32_t before = kNone;
  for (uint32_t node = roots_[lane]; node != kNone || !path.empty();) {
    for (; node != kNone; node = nodes_[node].left) {
      KV_CHECK(node < nodes_.size() && nodes_[node].lane == lane && path.size() < size_);
      for (const uint32_t below : {nodes_[node].left, nodes_[node].right}) {
        KV_CHECK(below == kNone || Priority(below) < Priority(node));
      }
      path.push_back(node);
    }
    node = path.back();
    path.pop_back();
    KV_CHECK(before == kNone ? winners_[leaves_ + lane] == node : Before(before, node));
    KV_CHECK(++count <= size_);
    before = node;
    node = nodes_[node].right;
  }
  KV_CHECK(count > 0 || winners_[leaves_ + lane] == kNone);
  return count;
}

void EvictionQueue::CheckInvariants() const {
  uint32_t listed = 0;
  for (uint32_t lane = 0; lane < num_lanes_; ++lane) listed += CheckLane(lane);
  uint32_t marked = 0;
  for (const Node& node : nodes_) marked += node.lane != kNone;
  KV_CHECK(listed == size_ && marked == size_);
  for (uint32_t i = 1; i < leaves_; ++i) {
    KV_CHECK(winners_[i] == Earlier(winners_[2 * i], winners_[2 * i + 1]));
  }
}

}  // namespace kvasir
