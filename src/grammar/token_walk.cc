#include "grammar/token_walk.h"

#include <algorithm>
#include <utility>

namespace kvasir {
namespace {

// A walk may take this part of the budget whatever the others have.
constexpr uint64_t kWalks = 128;

}  // namespace

WalkFrames::Frame WalkFrames::Push(Grammar::NodeId node, Frame below) {
  const auto next = static_cast<Frame>(frames_.size());
  const auto [found, is_new] = pushed_.try_emplace(uint64_t{node} << 32 | below, next);
  if (is_new) frames_.push_back({node, below});
  return found->second;
}

WalkFrames::Frame WalkFrames::FrameOf(const StackFrame* outer) {
  if (outer == nullptr) return kBottom;
  const auto next = static_cast<Frame>(frames_.size());
  const auto [found, is_new] = outer_.try_emplace(outer, next);
  if (is_new) frames_.push_back({outer->node(), kBottom, outer});
  return found->second;
}

WalkFrames::Frame WalkFrames::Below(Frame frame) {
  const StackFrame* const outer = frames_[frame].outer;
  return outer == nullptr ? frames_[frame].below : FrameOf(outer->below().get());
}

WalkFrames::Frame WalkFrames::CopyOf(const WalkFrames& other, Frame frame) {
  std::vector<Grammar::NodeId> nodes;  // above what is known here
  for (; !IsBottom(frame) && other.frames_[frame].outer == nullptr;
       frame = other.frames_[frame].below) {
    nodes.push_back(other.frames_[frame].node);
  }
  Frame copy = FrameOf(other.frames_[frame].outer);
  for (size_t i = nodes.size(); i-- > 0;) copy = Push(nodes[i], copy);
  return copy;
}

TokenWalk::TokenWalk(const Grammar& grammar, const TokenTrie& trie, ByteBudget& memory)
    : grammar_(grammar),
      trie_(trie),
      own_bytes_(memory.max_bytes() / kWalks),
      taken_(memory),
      path_(trie.max_depth() + 1, kDead) {}

void TokenWalk::StartAt(Grammar::NodeId node, const Grammar::NodeId* below) {
  Places places;
  places.AddOnly(
      node, below == nullptr ? WalkFrames::kBottom : frames_.Push(*below, WalkFrames::kBottom));
  start_ = IdOf(places);
}

void TokenWalk::StartAfter(const StackFrame* outer, WalkSteps& steps) {
  const WalkFrames::Frame frame = frames_.FrameOf(outer);
  Places places;
  places.Begin(grammar_, frames_, frames_.NodeOf(frame), frames_.Below(frame));
  steps.Take(2 + 8 * places.places().size());
  start_ = IdOf(places);
}

TokenWalk::StateId TokenWalk::IdOf(const Places& places) {
  if (places.is_empty()) return kDead;
  uint64_t hash = places.may_end();
  for (const auto& place : places.places()) {
    hash = (hash ^ (uint64_t{place.node} << 32 | place.frame)) * 0x9E3779B97F4A7C15ULL;
    hash ^= hash >> 29;
  }
  const auto same = [](const Places::Place& a, const Places::Place& b) {
    return a.node == b.node && a.frame == b.frame;
  };
  const auto [begin, end] = state_of_.equal_range(hash);
  for (auto found = begin; found != end; ++found) {
    const Places& other = states_[static_cast<size_t>(found->second)].places;
    if (other.may_end() == places.may_end() &&
        std::equal(places.places().begin(), places.places().end(), other.places().begin(),
                   other.places().end(), same)) {
      return found->second;
    }
  }
  const auto id = static_cast<StateId>(states_.size());
  states_.push_back({places, places.FirstBytes(grammar_), nullptr});
  state_of_.emplace(hash, id);
  // With the room that a vector has in front of it, and in the map.
  state_bytes_ += 2 * sizeof(State) + places.places().size() * sizeof(Places::Place) + 64;
  return id;
}

TokenWalk::StateId TokenWalk::Known(StateId from, uint8_t byte) {
  const State& state = states_[static_cast<size_t>(from)];
  if (!Has(state.first, byte)) return kDead;
  return state.next ? (*state.next)[byte] : kUnknown;
}

void TokenWalk::Visit(uint32_t begin, uint32_t end, uint32_t depth, uint32_t known) {
  at_ = begin;
  end_ = start_ == kDead ? begin : end;
  depth_ = depth;
  known_ = known;
  path_[depth] = start_;
}

// Forgets all states but those on the way to at_, unless there is room for more, or these are most
// of them.
void TokenWalk::MakeRoom() {
  const uint64_t now = bytes();
  if (now <= taken_.bytes()) return;
  if (now <= own_bytes_) return taken_.ResizeAnyway(now);
  if (taken_.Resize(now)) return;
  if (now < 2 * kept_bytes_) return taken_.ResizeAnyway(now);
  const std::vector<State> states = std::exchange(states_, {});
  const WalkFrames frames = std::exchange(frames_, {});
  state_of_ = {};
  state_bytes_ = 0;
  const auto keep = [&](StateId& id) {
    if (id == kDead) return;
    Places places;
    const Places& old = states[static_cast<size_t>(id)].places;
    for (const auto& place : old.places()) {
      places.AddOnly(place.node, frames_.CopyOf(frames, place.frame));
    }
    if (old.may_end()) places.set_may_end();
    id = IdOf(places);
  };
  keep(start_);
  for (uint32_t depth = depth_; depth < trie_.node(at_).depth; ++depth) keep(path_[depth]);
  kept_bytes_ = bytes();
  taken_.ResizeAnyway(kept_bytes_);
}

bool TokenWalk::Run(std::span<uint64_t> legal, std::vector<uint32_t>* exits, WalkSteps& steps) {
  while (at_ < end_) {
    const TokenTrie::Node& node = trie_.node(at_);
    if (!is_stepping_) {
      if (steps.are_over()) return false;
      steps.Take(1);
      if (node.deepest <= known_ && node.deepest < 255) {
        at_ = node.end;
        continue;
      }
    }
    StateId to = is_stepping_ ? kUnknown : Known(path_[node.depth - 1], node.byte);
    if (to == kUnknown) {
      if (!is_stepping_) {
        MakeRoom();
        const State& from = states_[static_cast<size_t>(path_[node.depth - 1])];
        step_.Begin(grammar_, from.places, node.byte, steps);
        is_stepping_ = true;
      }
      if (!step_.Run(grammar_, frames_, steps)) return false;
      is_stepping_ = false;
      steps.Take(step_.result().places().size() / 2);
      to = IdOf(step_.result());
      State& from = states_[static_cast<size_t>(path_[node.depth - 1])];
      if (!from.next) {
        from.next = std::make_unique<Next>();
        from.next->fill(kUnknown);
        state_bytes_ += sizeof(Next);
      }
      (*from.next)[node.byte] = to;
    }
    if (to == kDead) {
      at_ = node.end;
      continue;
    }
    path_[node.depth] = to;
    if (node.depth > known_) {
      for (const TokenId id : trie_.tokens(at_)) SetLegal(legal, id);
      if (exits != nullptr && trie_.has_children(at_) &&
          states_[static_cast<size_t>(to)].places.may_end()) {
        exits->push_back(at_);
      }
    }
    ++at_;
  }
  return true;
}

}  // namespace kvasir
