// Grammar: rules as automata of byte edges and calls of rules.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "grammar/grammar_source.h"
#include "grammar/node_twins.h"
#include "kvasir/status.h"

namespace kvasir {

// A set of bytes.
using ByteSet = std::array<uint64_t, 4>;
inline bool Has(const ByteSet& set, uint8_t byte) { return set[byte >> 6] >> (byte & 63) & 1; }

// Limits of what is compiled; what is larger is refused.
inline constexpr uint32_t kMaxGrammarRules = 20'000;
inline constexpr uint32_t kMaxGrammarNodes = 1 << 18;
inline constexpr uint32_t kMaxGrammarEdges = 1 << 20;
inline constexpr uint32_t kMaxGrammarBytes = 1 << 20;  // of a GBNF text

// A rule is a graph of nodes: an edge reads one byte of a range, a call reads a text of another
// rule and returns to a node of the calling rule. From each node the end of its rule can be
// reached. No rule calls itself before it has read a byte. Where that stays small, each byte and
// each rule leads from a node to one node. Immutable; thread-safe.
class Grammar {
 public:
  using NodeId = uint32_t;
  struct Edge {
    uint8_t first, last;  // bytes, both included
    NodeId to;
  };
  struct Call {
    NodeId start;  // of the called rule
    NodeId to;     // where it returns
  };

  // kInvalidArgument names the rule and what is wrong with it: not defined, called by itself before
  // it has read anything, without an end, or too large. O(nodes + edges), both limited.
  static Result<std::shared_ptr<const Grammar>> Compile(const GrammarSource& source, RuleId root);

  NodeId start() const { return start_; }
  bool may_be_empty() const { return nodes_[start_].may_end; }
  bool may_end(NodeId node) const { return nodes_[node].may_end; }
  // Returns the bytes that edges and calls of the node can read first.
  const ByteSet& first(NodeId node) const { return first_sets_[nodes_[node].first]; }
  std::span<const Edge> edges(NodeId node) const {
    return std::span(edges_).subspan(nodes_[node].edges,
                                     nodes_[node + 1].edges - nodes_[node].edges);
  }
  std::span<const Call> calls(NodeId node) const {
    return std::span(calls_).subspan(nodes_[node].calls,
                                     nodes_[node + 1].calls - nodes_[node].calls);
  }
  uint64_t num_ways(NodeId node) const { return edges(node).size() + calls(node).size(); }
  // Tells that nothing can be read here: the rule ends.
  bool only_ends(NodeId node) const { return first(node) == ByteSet{}; }
  // From so many bytes on, most tokens are legal, and to find them takes milliseconds.
  static constexpr int kWide = 64;
  bool is_wide(NodeId node) const;
  const NodeTwin& twin(NodeId node) const { return twins_[node]; }
  // Tells whether the byte leads from both to the same nodes.
  bool SameAfter(NodeId a, NodeId b, uint8_t byte) const;
  uint32_t num_nodes() const { return static_cast<uint32_t>(nodes_.size() - 1); }
  uint64_t bytes() const;              // of memory
  uint64_t id() const { return id_; }  // of no other grammar of this process

 private:
  friend class GrammarCompiler;
  struct Node {
    uint32_t edges = 0, calls = 0;  // where its own begin; they end where the next node's begin
    bool may_end : 1 = false;
    uint32_t first : 31 = 0;  // of first_sets_: many nodes have the same
  };

  Grammar();

  uint64_t id_;
  NodeId start_ = 0;
  std::vector<Node> nodes_;  // and one at the end
  std::vector<ByteSet> first_sets_;
  std::vector<Edge> edges_;
  std::vector<Call> calls_;
  std::vector<NodeTwin> twins_;
};

}  // namespace kvasir
