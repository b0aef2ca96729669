// TokenWalk: which tokens of a vocabulary a grammar can read from some places.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "grammar/grammar_step.h"
#include "grammar/stack_frame.h"
#include "grammar/token_trie.h"

namespace kvasir {

// The stacks of one walk. Frames are numbers; equal frames have the same number. Below the first
// frame is the bottom, or where the walk began at places of a Matcher, their frames.
class WalkFrames {
 public:
  using Frame = uint32_t;
  static constexpr Frame kBottom = 0;

  WalkFrames() : frames_(1) {}
  Frame Push(Grammar::NodeId node, Frame below);
  Frame FrameOf(const FrameRef& outer);  // of a Matcher, which must outlive this
  static bool IsBottom(Frame frame) { return frame == kBottom; }
  static bool IsFull(Frame) { return false; }  // a token is shorter than that
  Grammar::NodeId NodeOf(Frame frame) const { return frames_[frame].node; }
  Frame Below(Frame frame);
  static bool Same(Frame a, Frame b) { return a == b; }

 private:
  struct Entry {
    Grammar::NodeId node = 0;
    Frame below = kBottom;
    const StackFrame* outer = nullptr;  // then what is below is not known yet
  };
  std::vector<Entry> frames_;
  std::unordered_map<uint64_t, Frame> pushed_;  // node and below
  std::unordered_map<const StackFrame*, Frame> outer_;
};

// Walks the trie with sets of places. Each set and where each byte leads from it are found once.
// One thread; for a few walks at most.
class TokenWalk {
 public:
  using Places = PlaceSet<WalkFrames>;
  using StateId = int32_t;
  static constexpr StateId kDead = -1;

  TokenWalk(const Grammar& grammar, const TokenTrie& trie);

  // The state of these places.
  StateId Start(const Places& places) { return IdOf(places); }
  // The state of what follows where the rule above `frame` has ended.
  StateId After(WalkFrames::Frame frame);
  WalkFrames& frames() { return frames_; }

  // Visits the nodes [begin, end) of the trie, which go on from one of `depth` bytes at which the
  // state is `start`. Sets the bits of tokens that can be read. `exits`, unless null, gets the
  // nodes with others below them at which the bottom is reached. Leaves out nodes of at most
  // `known` bytes. O(nodes that can be read, on the way to more than `known` bytes).
  void Visit(uint32_t begin, uint32_t end, uint32_t depth, StateId start, std::span<uint64_t> legal,
             std::vector<uint32_t>* exits, uint32_t known = 0);

 private:
  static constexpr StateId kUnknown = -2;
  struct State {
    Places places;
    ByteSet first;
    std::unique_ptr<std::array<StateId, 256>> next;
  };

  StateId IdOf(const Places& places);
  StateId Next(StateId from, uint8_t byte);

  const Grammar& grammar_;
  const TokenTrie& trie_;
  WalkFrames frames_;
  std::vector<State> states_;
  std::unordered_multimap<uint64_t, StateId> state_of_;  // by hash
  std::vector<Places::Place> open_;
  std::vector<StateId> path_;  // the state at each depth
  uint64_t steps_ = 0;
};

}  // namespace kvasir
