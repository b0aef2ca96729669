// Reading one byte from a set of places of a grammar, for any kind of stack.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "grammar/grammar.h"

namespace kvasir {

// Places that a text may go on from, at most. What would have more is not legal.
inline constexpr size_t kMaxPlaces = 512;

// Frames: a kind of stacks. Has `Frame` (the frames below a node, as a value), `Push(node, frame)`,
// `IsBottom(frame)`, `NodeOf(frame)` (where the called rule returns), `Below(frame)`,
// `Same(a, b)` and `IsFull(frame)` (no more may be pushed).
template <typename Frames>
class PlaceSet {
 public:
  using Frame = typename Frames::Frame;
  struct Place {
    Grammar::NodeId node;
    Frame frame;
  };

  // Whether the lowest rule may end here; nothing then follows.
  bool may_end() const { return may_end_; }
  // Each has something to read.
  const std::vector<Place>& places() const { return places_; }
  bool is_empty() const { return places_.empty() && !may_end_; }
  void Clear() {
    places_.clear();
    may_end_ = false;
  }
  // The bytes that can be read.
  ByteSet FirstBytes(const Grammar& grammar) const {
    ByteSet first{};
    for (const Place& place : places_) {
      for (size_t i = 0; i < first.size(); ++i) first[i] |= grammar.first(place.node)[i];
    }
    return first;
  }

  // Adds a place and those to which rules that may end there return. O(places).
  void Add(const Grammar& grammar, Frames& frames, Grammar::NodeId node, Frame frame) {
    while (true) {
      if (!grammar.only_ends(node)) {
        if (Contains(places_, frames, node, frame)) return;
        places_.push_back({node, frame});
      }
      if (!grammar.may_end(node)) return;
      if (frames.IsBottom(frame)) {
        may_end_ = true;
        return;
      }
      node = frames.NodeOf(frame);
      frame = frames.Below(frame);
    }
  }

  // Adds a place alone.
  void AddOnly(Grammar::NodeId node, Frame frame) { places_.push_back({node, frame}); }

  // Sets this to what `byte` leads to from the places of `from`. False where that is nothing, or
  // more than kMaxPlaces. `open` is scratch memory.
  bool Step(const Grammar& grammar, Frames& frames, const PlaceSet& from, uint8_t byte,
            std::vector<Place>* open) {
    Clear();
    open->clear();
    for (const Place& place : from.places_) {
      if (Has(grammar.first(place.node), byte)) open->push_back(place);
    }
    for (size_t i = 0; i < open->size(); ++i) {
      const Place place = (*open)[i];  // `open` grows
      for (const Grammar::Edge& edge : grammar.edges(place.node)) {
        if (edge.first <= byte && byte <= edge.last) Add(grammar, frames, edge.to, place.frame);
      }
      for (const Grammar::Call& call : grammar.calls(place.node)) {
        if (!Has(grammar.first(call.start), byte)) continue;
        // A call that is the last of its rule needs no frame.
        const bool is_last = grammar.only_ends(call.to);
        if (!is_last && frames.IsFull(place.frame)) continue;
        const Frame frame = is_last ? place.frame : frames.Push(call.to, place.frame);
        if (!Contains(*open, frames, call.start, frame)) open->push_back({call.start, frame});
      }
      if (places_.size() > kMaxPlaces || open->size() > 2 * kMaxPlaces) {
        Clear();
        return false;
      }
    }
    return !is_empty();
  }

 private:
  static bool Contains(const std::vector<Place>& places, Frames& frames, Grammar::NodeId node,
                       const Frame& frame) {
    return std::any_of(places.begin(), places.end(), [&](const Place& place) {
      return place.node == node && frames.Same(place.frame, frame);
    });
  }

  std::vector<Place> places_;
  bool may_end_ = false;
};

}  // namespace kvasir
