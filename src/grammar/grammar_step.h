// Reading one byte from a set of places of a grammar, for any kind of stack.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "grammar/grammar.h"

namespace kvasir {

// Places that a text may go on from, at most. What would have more is not legal.
inline constexpr size_t kMaxPlaces = 512;

// Steps that some work may still take: a node of a trie, a place or a few edges that are looked at.
// One takes some 5 ns. Work is cut by them and not by a clock, so that a test can repeat it.
class WalkSteps {
 public:
  static constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();

  explicit WalkSteps(uint64_t most = kNoLimit) : most_(most) {}
  void Take(uint64_t num) { taken_ += num; }
  uint64_t taken() const { return taken_; }
  bool are_over() const { return taken_ >= most_; }

 private:
  uint64_t most_, taken_ = 0;
};

// Frames: a kind of stacks. Has `Frame` (the frames below a node, as a value), `Push(node, frame)`,
// `IsBottom(frame)`, `NodeOf(frame)` (where the called rule returns), `Below(frame)`,
// `Same(a, b)`, `HashOf(frame)` and `IsFull(frame)` (no more may be pushed).
template <typename Frames>
class PlaceSet {
 public:
  using Frame = typename Frames::Frame;
  struct Place {
    Grammar::NodeId node;
    Frame frame;
  };

  // Tells whether the lowest rule may end here; nothing then follows.
  bool may_end() const { return may_end_; }
  void set_may_end() { may_end_ = true; }
  // Returns places, of which each has something to read.
  const std::vector<Place>& places() const { return places_; }
  bool is_empty() const { return places_.empty() && !may_end_; }
  void Clear() {
    places_.clear();
    may_end_ = false;
  }
  // Returns the bytes that can be read.
  ByteSet FirstBytes(const Grammar& grammar) const {
    ByteSet first{};
    for (const Place& place : places_) {
      for (size_t i = 0; i < first.size(); ++i) first[i] |= grammar.first(place.node)[i];
    }
    return first;
  }

  // Adds a place and those to which rules that may end there return. O(frames).
  // REQUIRES: the set is empty.
  void Begin(const Grammar& grammar, Frames& frames, Grammar::NodeId node, Frame frame) {
    AddWith(grammar, frames, node, frame, [this](Place place) {
      places_.push_back(std::move(place));
      return true;
    });
  }

  // Adds a place alone.
  void AddOnly(Grammar::NodeId node, Frame frame) { places_.push_back({node, frame}); }

 private:
  template <typename>
  friend class ByteStep;

  // `add` adds a place, or returns false where the way ends: the place is there already.
  template <typename Add>
  void AddWith(const Grammar& grammar, Frames& frames, Grammar::NodeId node, Frame frame,
               const Add& add) {
    while (true) {
      if (!grammar.only_ends(node) && !add(Place{node, frame})) return;
      if (!grammar.may_end(node)) return;
      if (frames.IsBottom(frame)) {
        may_end_ = true;
        return;
      }
      node = frames.NodeOf(frame);
      frame = frames.Below(frame);
    }
  }

  std::vector<Place> places_;
  bool may_end_ = false;
};

// Which places a list has. A few are compared one by one; more are found by their hash.
template <typename Frames>
class PlaceIndex {
 public:
  using Place = typename PlaceSet<Frames>::Place;

  void Clear() { num_known_ = 0; }
  // Adds a place at the list's end, unless it is there. Returns whether it was new.
  bool Add(std::vector<Place>& places, const Frames& frames, Place place) {
    const auto same = [&](const Place& other) {
      return place.node == other.node && frames.Same(place.frame, other.frame);
    };
    if (places.size() < kFew) {
      if (std::any_of(places.begin(), places.end(), same)) return false;
      places.push_back(std::move(place));
      return true;
    }
    if (num_known_ == 0 || 2 * places.size() >= slots_.size()) Rebuild(places, frames);
    for (size_t i = SlotOf(place, frames);; i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i] == 0) {
        places.push_back(std::move(place));
        num_known_ = slots_[i] = static_cast<uint32_t>(places.size());
        return true;
      }
      if (same(places[slots_[i] - 1])) return false;
    }
  }
  uint64_t bytes() const { return slots_.capacity() * sizeof(uint32_t); }

 private:
  static constexpr size_t kFew = 16;

  size_t SlotOf(const Place& place, const Frames& frames) const {
    const uint64_t hash =
        (frames.HashOf(place.frame) ^ place.node * 0x9E3779B97F4A7C15ULL) * 0xD6E8FEB86659FD93ULL;
    return (hash >> 32) & (slots_.size() - 1);
  }
  void Rebuild(const std::vector<Place>& places, const Frames& frames) {
    size_t size = std::max<size_t>(slots_.size(), 8 * kFew);
    while (size < 4 * places.size()) size *= 2;
    slots_.assign(size, 0);
    for (uint32_t at = 0; at < places.size(); ++at) {
      size_t i = SlotOf(places[at], frames);
      while (slots_[i] != 0) i = (i + 1) & (size - 1);
      slots_[i] = at + 1;
    }
    num_known_ = static_cast<uint32_t>(places.size());
  }

  std::vector<uint32_t> slots_;  // index + 1; 0: free
  uint32_t num_known_ = 0;       // 0: the slots are of another list
};

// What one byte leads to from a set of places. Can pause after each place.
template <typename Frames>
class ByteStep {
 public:
  using Places = PlaceSet<Frames>;
  using Place = typename Places::Place;

  void Begin(const Grammar& grammar, const Places& from, uint8_t byte, WalkSteps& steps) {
    byte_ = byte;
    next_ = 0;
    open_.clear();
    open_index_.Clear();
    result_.Clear();
    result_index_.Clear();
    steps.Take(2 + from.places().size() / 2);
    for (const Place& place : from.places()) {
      if (Has(grammar.first(place.node), byte)) open_.push_back(place);
    }
  }

  // Goes on. False: the steps are over before the end.
  bool Run(const Grammar& grammar, Frames& frames, WalkSteps& steps) {
    uint64_t num_added = 0;
    const auto add = [&](Place place) {
      ++num_added;
      // More are too many.
      return result_.places_.size() <= kMaxPlaces &&
             result_index_.Add(result_.places_, frames, std::move(place));
    };
    while (next_ < open_.size()) {
      if (steps.are_over()) return false;
      const Place place = open_[next_++];  // `open_` grows
      const auto edges = grammar.edges(place.node);
      const auto calls = grammar.calls(place.node);
      num_added = 4 + (edges.size() + calls.size()) / 4;
      for (const Grammar::Edge& edge : edges) {
        if (byte_ < edge.first || edge.last < byte_) continue;
        result_.AddWith(grammar, frames, edge.to, place.frame, add);
      }
      for (const Grammar::Call& call : calls) {
        if (!Has(grammar.first(call.start), byte_)) continue;
        // A call that is the last of its rule needs no frame.
        const bool is_last = grammar.only_ends(call.to);
        if (!is_last && frames.IsFull(place.frame)) continue;
        num_added += 4;
        (void)open_index_.Add(
            open_, frames, {call.start, is_last ? place.frame : frames.Push(call.to, place.frame)});
      }
      steps.Take(num_added);
      if (result_.places_.size() > kMaxPlaces || open_.size() > 2 * kMaxPlaces) {
        result_.Clear();
        open_.clear();
      }
    }
    return true;
  }

  // Returns what it found when it has run to the end. Empty where nothing follows, or more than
  // kMaxPlaces.
  Places& result() { return result_; }
  uint64_t bytes() const {
    return (open_.capacity() + result_.places_.capacity()) * sizeof(Place) + open_index_.bytes() +
           result_index_.bytes();
  }

 private:
  uint8_t byte_ = 0;
  size_t next_ = 0;
  std::vector<Place> open_;
  PlaceIndex<Frames> open_index_, result_index_;
  Places result_;
};

}  // namespace kvasir
