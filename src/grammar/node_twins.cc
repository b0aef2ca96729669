#include "grammar/node_twins.h"

#include <algorithm>
#include <map>
#include <utility>

namespace kvasir {
namespace {

// Nodes and edges that are looked at, beside four times as many as there are nodes.
constexpr uint64_t kMoreSteps = 1 << 16;

// Nodes by classes; those of a class are alike as far as is known.
class Partition {
 public:
  explicit Partition(std::span<const LocalPart> nodes)
      : nodes_(nodes), class_of_(nodes.size()), place_(nodes.size()), twins_(nodes.size()) {
    std::map<uint32_t, uint32_t> class_of_part;
    for (uint32_t node = 0; node < nodes.size(); ++node) {
      const auto next = static_cast<uint32_t>(class_of_part.size());
      Put(node, class_of_part.try_emplace(nodes[node].part, next).first->second);
    }
    FindOrigins();
  }

  std::vector<NodeTwin> Run() {
    std::vector<uint32_t> open(nodes_.size()), moved;
    for (uint32_t node = 0; node < nodes_.size(); ++node) open[node] = node;
    const uint64_t max_steps = 4 * nodes_.size() + kMoreSteps;
    uint32_t round = 1;
    for (; !open.empty() && round <= kMaxTwinRounds && steps_ <= max_steps; ++round) {
      moved = Separate(open, round);
      open.clear();
      for (const uint32_t node : moved) {
        const auto begin = origins_.begin() + origins_begin_[node];
        open.insert(open.end(), begin, origins_.begin() + origins_begin_[node + 1]);
      }
      std::sort(open.begin(), open.end());
      open.erase(std::unique(open.begin(), open.end()), open.end());
    }
    // What was not separated by now is alike for ever, or as far as the rounds came.
    const uint32_t bytes = open.empty() ? NodeTwin::kAlways : round - 1;
    for (const std::vector<uint32_t>& members : members_) {
      for (const uint32_t node : members) {
        if (node != members[0]) twins_[node] = {members[0], bytes};
      }
    }
    for (uint32_t node = 0; node < nodes_.size(); ++node) Settle(node);
    return std::move(twins_);
  }

 private:
  using Targets = std::vector<uint32_t>;  // classes

  // Settles a node's twin: one that was separated later has a better one.
  void Settle(uint32_t node) {
    NodeTwin& twin = twins_[node];
    if (twin.bytes == 0) twin.node = node;
    while (twins_[twin.node].node != twin.node && twins_[twin.node].bytes > 0 &&
           twins_[twin.node].bytes >= twin.bytes && twin.node != node) {
      twin.node = twins_[twin.node].node;
    }
  }

  void Put(uint32_t node, uint32_t to) {
    if (to == members_.size()) members_.emplace_back();
    class_of_[node] = to;
    place_[node] = static_cast<uint32_t>(members_[to].size());
    members_[to].push_back(node);
  }

  void Take(uint32_t node) {
    std::vector<uint32_t>& members = members_[class_of_[node]];
    place_[members.back()] = place_[node];
    std::swap(members[place_[node]], members.back());
    members.pop_back();
  }

  void FindOrigins() {
    origins_begin_.assign(nodes_.size() + 1, 0);
    for (const LocalPart& node : nodes_) {
      for (const uint32_t to : node.to) ++origins_begin_[to + 1];
    }
    for (size_t i = 0; i < nodes_.size(); ++i) origins_begin_[i + 1] += origins_begin_[i];
    origins_.resize(origins_begin_.back());
    std::vector<uint32_t> next(origins_begin_.begin(), origins_begin_.end() - 1);
    for (uint32_t node = 0; node < nodes_.size(); ++node) {
      for (const uint32_t to : nodes_[node].to) origins_[next[to]++] = node;
    }
  }

  Targets TargetsOf(uint32_t node) {
    Targets targets;
    for (const uint32_t to : nodes_[node].to) targets.push_back(class_of_[to]);
    steps_ += 1 + targets.size();
    return targets;
  }

  // Separates those of the nodes whose targets differ from those of their classes; returns them.
  std::vector<uint32_t> Separate(const std::vector<uint32_t>& open, uint32_t round) {
    // By what was known before the round.
    std::map<std::pair<uint32_t, Targets>, std::vector<uint32_t>> groups;
    std::map<uint32_t, size_t> num_open;  // of each class
    for (const uint32_t node : open) {
      groups[{class_of_[node], TargetsOf(node)}].push_back(node);
      ++num_open[class_of_[node]];
    }
    // The part that keeps its class: of nodes that were not looked at, which are still alike, or
    // the largest.
    std::map<uint32_t, const Targets*> stays;
    std::map<uint32_t, size_t> most;
    std::map<uint32_t, Targets> of_rest;
    for (const auto& [of, num] : num_open) {
      if (num == members_[of].size()) continue;
      const auto rest = std::find_if(members_[of].begin(), members_[of].end(), [&](uint32_t node) {
        ++steps_;
        return !std::binary_search(open.begin(), open.end(), node);
      });
      stays[of] = &(of_rest[of] = TargetsOf(*rest));
    }
    for (const auto& [key, group] : groups) {
      if (of_rest.contains(key.first) || group.size() <= most[key.first]) continue;
      most[key.first] = group.size();
      stays[key.first] = &key.second;
    }
    std::vector<uint32_t> moved;
    std::vector<std::pair<size_t, uint32_t>> left;  // where a part begins, its old class
    for (const auto& [key, group] : groups) {
      if (*stays[key.first] == key.second) continue;
      left.emplace_back(moved.size(), key.first);
      const auto to = static_cast<uint32_t>(members_.size());
      for (const uint32_t node : group) {
        Take(node);
        Put(node, to);
        moved.push_back(node);
      }
    }
    for (size_t i = 0; i < left.size(); ++i) {
      const size_t end = i + 1 < left.size() ? left[i + 1].first : moved.size();
      for (size_t at = left[i].first; at < end; ++at) {
        twins_[moved[at]] = {members_[left[i].second][0], round - 1};
      }
    }
    return moved;
  }

  const std::span<const LocalPart> nodes_;
  std::vector<uint32_t> class_of_, place_;  // place: in members_
  std::vector<std::vector<uint32_t>> members_;
  std::vector<uint32_t> origins_begin_, origins_;  // the nodes that lead to a node
  std::vector<NodeTwin> twins_;
  uint64_t steps_ = 0;
};

}  // namespace

std::vector<NodeTwin> FindTwins(std::span<const LocalPart> nodes) { return Partition(nodes).Run(); }

}  // namespace kvasir
