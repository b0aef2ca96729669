// NodeHold: the place of a sequence or a match in the index.
#pragma once

#include <cstdint>

#include "base/moves.h"
#include "block/ids.h"
#include "index/prefix_index.h"

namespace kvasir {

class Residency;

// A node of the index, which stays while it is held, even without a block. Move-only. Must not
// outlive its Residency.
class NodeHold {
 public:
  NodeHold() = default;  // holds nothing
  NodeHold(Residency* residency, NamespaceId ns, NodeId node);
  NodeHold(NodeHold&&) noexcept = default;
  NodeHold& operator=(NodeHold&& other) noexcept { return MoveInto(*this, std::move(other)); }
  ~NodeHold() { Reset(); }

  NodeHold Share() const;
  void MoveTo(NodeId node);  // REQUIRES: is_current()
  // Lets go of the node as if it had been erased; is_current() is false from then on.
  void Leave();
  void Reset();

  NamespaceId ns() const { return ns_; }
  NodeId node() const { return node_; }  // a full block's, or the root; REQUIRES: is_current()
  // Tells whether neither the namespace nor the node was erased since.
  bool is_current() const;

 private:
  bool same_epoch() const;  // the namespace was not erased since

  MovedPointer<Residency> residency_;
  NamespaceId ns_{};
  uint32_t epoch_ = 0;  // of the namespace when this was made
  NodeId node_{};
};

}  // namespace kvasir
