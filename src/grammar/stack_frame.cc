#include "grammar/stack_frame.h"

namespace kvasir {

FrameRef::FrameRef(Grammar::NodeId node, FrameRef below)
    : frame_(new StackFrame(node, std::move(below))) {}

FrameRef::FrameRef(const FrameRef& other) : frame_(other.frame_) {
  // Relaxed: `other` keeps the frame alive meanwhile.
  if (frame_ != nullptr) frame_->shares_.fetch_add(1, std::memory_order_relaxed);
}

FrameRef::~FrameRef() {
  // A loop, since a stack may be deeper than recursion is. Acquire and release: the thread that
  // drops the last share frees what others have read.
  while (frame_ != nullptr && frame_->shares_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    StackFrame* const below = std::exchange(frame_->below_.frame_, nullptr);
    delete std::exchange(frame_, below);
  }
}

StackFrame::StackFrame(Grammar::NodeId node, FrameRef below)
    : node_(node),
      depth_(below.get() == nullptr ? 1 : below->depth() + 1),
      hash_(((below.get() == nullptr ? 0 : below->hash()) ^ node) * 0x9E3779B97F4A7C15ULL + 1),
      below_(std::move(below)) {}

bool StackFrames::Same(const Frame& a, const Frame& b) {
  const StackFrame *one = a.get(), *other = b.get();
  while (one != other) {
    if (one == nullptr || other == nullptr || one->hash() != other->hash() ||
        one->depth() != other->depth() || one->node() != other->node()) {
      return false;
    }
    one = one->below().get(), other = other->below().get();
  }
  return true;
}

}  // namespace kvasir
