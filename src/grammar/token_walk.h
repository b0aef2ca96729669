// TokenWalk: which tokens of a vocabulary a grammar can read from some places.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/byte_budget.h"
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
  Frame FrameOf(const StackFrame* outer);  // of a Matcher, which must outlive this; null: kBottom
  Frame CopyOf(const WalkFrames& other, Frame frame);
  static bool IsBottom(Frame frame) { return frame == kBottom; }
  static bool IsFull(Frame) { return false; }  // a token is shorter than that
  Grammar::NodeId NodeOf(Frame frame) const { return frames_[frame].node; }
  Frame Below(Frame frame);
  static bool Same(Frame a, Frame b) { return a == b; }
  static uint64_t HashOf(Frame frame) { return frame; }
  uint64_t bytes() const { return frames_.size() * kFrameBytes; }

 private:
  struct Entry {
    Grammar::NodeId node = 0;
    Frame below = kBottom;
    const StackFrame* outer = nullptr;  // then what is below is not known yet
  };
  // Memory of one entry, with the spare room of its vector and its place in a map.
  static constexpr uint64_t kFrameBytes = 2 * sizeof(Entry) + 48;

  std::vector<Entry> frames_;
  std::unordered_map<uint64_t, Frame> pushed_;  // node and below
  std::unordered_map<const StackFrame*, Frame> outer_;
};

// Walks the trie with sets of places. Remembers sets and where each byte leads from them, as far as
// there is memory: when that is full, it forgets all but those on its way, and finds them again.
// What it finds does not depend on that. Can pause anywhere. One thread at a time.
class TokenWalk {
 public:
  using Places = PlaceSet<WalkFrames>;

  // `grammar`, `trie` and `memory` must outlive it.
  TokenWalk(const Grammar& grammar, const TokenTrie& trie, ByteBudget& memory);

  // Sets where visits start: at the node alone, whose rule returns to `below`, unless that is null.
  void StartAt(Grammar::NodeId node, const Grammar::NodeId* below);
  // Starts with what follows where the rule above `outer` has ended. O(frames that may end).
  void StartAfter(const StackFrame* outer, WalkSteps& steps);

  // Begins a visit of the nodes [begin, end) of the trie, which go on from one of `depth` bytes.
  // Leaves out nodes of at most `known` bytes.
  void Visit(uint32_t begin, uint32_t end, uint32_t depth, uint32_t known = 0);
  // Goes on. Sets the bits of tokens that can be read. `exits`, unless null, gets the nodes with
  // others below them at which the bottom is reached. False: the steps are over before the end.
  // O(nodes that can be read, on the way to more than `known` bytes).
  bool Run(std::span<uint64_t> legal, std::vector<uint32_t>* exits, WalkSteps& steps);

 private:
  using StateId = int32_t;
  static constexpr StateId kDead = -1, kUnknown = -2;
  using Next = std::array<StateId, 256>;
  struct State {
    Places places;
    ByteSet first;
    std::unique_ptr<Next> next;
  };

  StateId IdOf(const Places& places);
  StateId Known(StateId from, uint8_t byte);
  void MakeRoom();
  uint64_t bytes() const { return state_bytes_ + frames_.bytes() + step_.bytes(); }

  const Grammar& grammar_;
  const TokenTrie& trie_;
  const uint64_t own_bytes_;  // that it may take, whatever others have
  ByteShare taken_;
  WalkFrames frames_;
  std::vector<State> states_;
  std::unordered_multimap<uint64_t, StateId> state_of_;  // by hash
  uint64_t state_bytes_ = 0, kept_bytes_ = 0;            // of states_; what the last MakeRoom kept
  ByteStep<WalkFrames> step_;
  bool is_stepping_ = false;

  StateId start_ = kDead;
  uint32_t at_ = 0, end_ = 0, depth_ = 0, known_ = 0;  // of the visit
  std::vector<StateId> path_;                          // the state at each depth
};

}  // namespace kvasir
