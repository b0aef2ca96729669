// StackFrame: a called rule's way back, shared by all stacks that go through it.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

#include "grammar/grammar.h"

namespace kvasir {

// Rules that are open at once, at most. Text that would open more is not legal.
inline constexpr uint32_t kMaxOpenRules = 10'000;
// Frames of all of a matcher's stacks together, at most, and those that it may have made before it
// counts them again. Text that would need more is not legal: 480 rules that read the same text,
// each with its own stack, would take 225 MiB for 10,000 bytes, and 0.4 s to free them.
inline constexpr uint32_t kMaxFrames = 12'288, kMaxMadeFrames = 2 * kMaxFrames;

class StackFrame;

// A share in an immutable frame; none: the bottom of the stack. Copies are O(1) and may be used and
// destroyed by different threads.
class FrameRef {
 public:
  FrameRef() = default;
  FrameRef(Grammar::NodeId node, FrameRef below);  // a new frame
  FrameRef(const FrameRef& other);
  FrameRef(FrameRef&& other) noexcept : frame_(std::exchange(other.frame_, nullptr)) {}
  FrameRef& operator=(FrameRef other) noexcept {
    std::swap(frame_, other.frame_);
    return *this;
  }
  ~FrameRef();

  const StackFrame* get() const { return frame_; }
  const StackFrame* operator->() const { return frame_; }

 private:
  StackFrame* frame_ = nullptr;
};

class StackFrame {
 public:
  Grammar::NodeId node() const { return node_; }  // where the called rule returns
  const FrameRef& below() const { return below_; }
  uint32_t depth() const { return depth_; }  // of frames, this one included
  uint64_t hash() const { return hash_; }    // of this and all frames below

 private:
  friend class FrameRef;
  StackFrame(Grammar::NodeId node, FrameRef below);

  std::atomic<uint32_t> shares_{1};
  const Grammar::NodeId node_;
  const uint32_t depth_;
  const uint64_t hash_;
  FrameRef below_;
};

// What the frames of one matcher take, at most, with the room that the allocator adds to each.
inline constexpr uint64_t kMostFrameBytes = kMaxMadeFrames * (sizeof(StackFrame) + 16);

// The stacks of a Matcher, for PlaceSet.
struct StackFrames {
  using Frame = FrameRef;
  Frame Push(Grammar::NodeId node, const Frame& below) {
    ++num_made;
    return {node, below};
  }
  static bool IsBottom(const Frame& frame) { return frame.get() == nullptr; }
  static bool IsFull(const Frame& frame) {
    return !IsBottom(frame) && frame->depth() >= kMaxOpenRules;
  }
  static Grammar::NodeId NodeOf(const Frame& frame) { return frame->node(); }
  static Frame Below(const Frame& frame) { return frame->below(); }
  static uint64_t HashOf(const Frame& frame) { return IsBottom(frame) ? 0 : frame->hash(); }
  // O(1), except for equal stacks that are different objects: up to where they become one.
  static bool Same(const Frame& a, const Frame& b);

  uint32_t num_made = 0;  // frames below the places at most: made since they were counted
};

}  // namespace kvasir
