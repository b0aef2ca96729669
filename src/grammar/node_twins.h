// Nodes of a grammar that read the same texts up to some length.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace kvasir {

// What a node has in common with another: texts of up to `bytes` bytes can be read from both or
// from neither, and end at nodes where their rules may end or at nodes where they may not. bytes 0:
// most bytes lead from both to the same nodes.
struct NodeTwin {
  static constexpr uint32_t kAlways = std::numeric_limits<uint32_t>::max();
  uint32_t node;   // itself, where it has none
  uint32_t bytes;  // kAlways: all texts
};

// A node as its local part, which is equal for nodes that read the same first bytes by the same
// rules, and the nodes to which its edges and calls lead, in their order. An edge reads a byte, and
// a call at least one.
struct LocalPart {
  uint32_t part;
  std::span<const uint32_t> to;
};

// [node]. Twins lead to nodes without one in some steps. Partition refinement (Moore, 1956): round
// t separates nodes of which a text of t bytes can tell; what is separated later than after
// kMaxTwinRounds, or after a bounded number of steps, counts as separated then. O(nodes + edges)
// and O(edges to nodes that were separated) for each round.
inline constexpr uint32_t kMaxTwinRounds = 256;
std::vector<NodeTwin> FindTwins(std::span<const LocalPart> nodes);

}  // namespace kvasir
