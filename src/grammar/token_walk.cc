#include "grammar/token_walk.h"

#include <algorithm>
#include <utility>

namespace kvasir {
namespace {

// Steps of a walk, at most: some 50 ms. What is found later is not legal. Common grammars need a
// few thousand. A step compares each place with each, so many places count as more steps.
constexpr uint64_t kMaxWalkSteps = 500'000;

}  // namespace

WalkFrames::Frame WalkFrames::Push(Grammar::NodeId node, Frame below) {
  const auto next = static_cast<Frame>(frames_.size());
  const auto [found, is_new] = pushed_.try_emplace(uint64_t{node} << 32 | below, next);
  if (is_new) frames_.push_back({node, below});
  return found->second;
}

WalkFrames::Frame WalkFrames::FrameOf(const FrameRef& outer) {
  if (outer.get() == nullptr) return kBottom;
  const auto next = static_cast<Frame>(frames_.size());
  const auto [found, is_new] = outer_.try_emplace(outer.get(), next);
  if (is_new) frames_.push_back({outer->node(), kBottom, outer.get()});
  return found->second;
}

WalkFrames::Frame WalkFrames::Below(Frame frame) {
  const StackFrame* const outer = frames_[frame].outer;
  return outer == nullptr ? frames_[frame].below : FrameOf(outer->below());
}

TokenWalk::TokenWalk(const Grammar& grammar, const TokenTrie& trie)
    : grammar_(grammar), trie_(trie), path_(trie.max_depth() + 1) {}

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
  return id;
}

TokenWalk::StateId TokenWalk::After(WalkFrames::Frame frame) {
  Places places;
  places.Add(grammar_, frames_, frames_.NodeOf(frame), frames_.Below(frame));
  return IdOf(places);
}

TokenWalk::StateId TokenWalk::Next(StateId from, uint8_t byte) {
  State& state = states_[static_cast<size_t>(from)];
  if (!Has(state.first, byte)) return kDead;
  if (!state.next) {
    state.next = std::make_unique<std::array<StateId, 256>>();
    state.next->fill(kUnknown);
  }
  StateId& known = (*state.next)[byte];
  if (known != kUnknown) return known;
  if (steps_ > kMaxWalkSteps) return kDead;
  std::array<StateId, 256>* const next = state.next.get();  // states_ grows
  Places places;
  places.Step(grammar_, frames_, state.places, byte, &open_);
  steps_ += 1 + open_.size() + open_.size() * open_.size() / 128;
  return (*next)[byte] = IdOf(places);
}

void TokenWalk::Visit(uint32_t begin, uint32_t end, uint32_t depth, StateId start,
                      std::span<uint64_t> legal, std::vector<uint32_t>* exits, uint32_t known) {
  if (start == kDead) return;
  path_[depth] = start;
  for (uint32_t i = begin; i < end;) {
    const TokenTrie::Node& node = trie_.node(i);
    if (node.deepest <= known && node.deepest < 255) {
      i = node.end;
      continue;
    }
    const StateId state = Next(path_[node.depth - 1], node.byte);
    if (state == kDead) {
      i = node.end;
      continue;
    }
    path_[node.depth] = state;
    if (node.depth <= known) {
      ++i;
      continue;
    }
    for (const TokenId id : trie_.tokens(i)) SetLegal(legal, id);
    if (exits != nullptr && trie_.has_children(i) &&
        states_[static_cast<size_t>(state)].places.may_end()) {
      exits->push_back(i);
    }
    ++i;
  }
}

}  // namespace kvasir
