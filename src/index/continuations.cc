#include "index/continuations.h"

#include <algorithm>
#include <array>
#include <bit>

#include "base/random.h"

namespace kvasir {
namespace {

constexpr uint32_t kLongest = Continuations::kLengths[0];

// Places of one bucket, the newest first. With one place each, a table that is 2% full lost 2% of
// its places to those of other texts.
constexpr size_t kBucket = 4;

// Returns how many places the table has. Three hashes of each token share two places: equal texts
// have equal hashes, and shorter ones repeat most.
uint64_t NumPlaces(uint64_t num_tokens) {
  if (num_tokens == 0) return 0;
  return std::clamp<uint64_t>(std::bit_ceil(num_tokens * 2), kBucket,
                              Continuations::kMaxBytes / sizeof(uint64_t));
}

size_t BucketOf(uint64_t hash, size_t num_places) { return hash & (num_places - kBucket); }

// Returns whether a place has the hash's bits that a place keeps.
bool HasTag(uint64_t place, uint64_t hash) { return place != 0 && place >> 48 == hash >> 48; }

}  // namespace

uint64_t Continuations::BytesFor(uint64_t num_tokens) {
  return NumPlaces(num_tokens) * sizeof(uint64_t);
}

Continuations::Continuations(const PrefixIndex& index, uint64_t num_tokens, uint64_t key)
    : index_(index), key_(Mix64(key)), places_(NumPlaces(num_tokens)) {}

uint64_t Continuations::HashOf(NodeId root, std::span<const TokenId> tokens) const {
  uint64_t hash = key_ ^ static_cast<uint32_t>(root) ^ (uint64_t{tokens.size()} << 32);
  for (const TokenId token : tokens) hash = Mix64(hash ^ static_cast<uint32_t>(token)) + key_;
  return hash;
}

void Continuations::Put(uint64_t hash, NodeId node, uint32_t offset) {
  const auto bucket = std::span(places_).subspan(BucketOf(hash, places_.size()), kBucket);
  size_t at = 0;  // of the place that leaves: the one with this hash, else the oldest
  while (at + 1 < kBucket && !HasTag(bucket[at], hash)) ++at;
  std::shift_right(bucket.begin(), bucket.begin() + static_cast<ptrdiff_t>(at) + 1, 1);
  bucket[0] = (hash >> 48) << 48 | uint64_t{offset + 1} << 32 | static_cast<uint32_t>(node);
}

void Continuations::Add(NodeId node) {
  if (places_.empty()) return;
  const NodeId root = index_.root(node);
  // The block's tokens, and the ones before it, as many as a hash needs.
  std::array<TokenId, kLongest> before;
  uint32_t num_before = 0;
  for (NodeId at = index_.parent(node); num_before < kLongest && !PrefixIndex::is_root(at);
       at = index_.parent(at)) {
    const std::span<const TokenId> tokens = index_.tokens(at);
    for (size_t i = tokens.size(); i-- > 0 && num_before < kLongest;) {
      before[kLongest - ++num_before] = tokens[i];
    }
  }
  const std::span<const TokenId> tokens = index_.tokens(node);
  std::array<TokenId, kLongest> last = before;  // that come before the place, at the end
  for (uint32_t offset = 0; offset < tokens.size() && offset < UINT16_MAX; ++offset) {
    for (const uint32_t length : kLengths) {
      if (num_before + offset < length) continue;
      Put(HashOf(root, std::span(last).last(length)), node, offset);
    }
    std::shift_left(last.begin(), last.end(), 1);
    last.back() = tokens[offset];
  }
}

// Returns the place of the hash, if its node is there.
std::optional<Continuations::Place> Continuations::At(NodeId root, uint64_t hash) const {
  if (places_.empty()) return std::nullopt;
  const auto bucket = std::span(places_).subspan(BucketOf(hash, places_.size()), kBucket);
  const auto found =
      std::ranges::find_if(bucket, [hash](uint64_t place) { return HasTag(place, hash); });
  if (found == bucket.end()) return std::nullopt;
  const uint64_t at = *found;
  const Place place{NodeId{static_cast<uint32_t>(at)},
                    static_cast<uint32_t>(at >> 32 & UINT16_MAX) - 1};
  if (place.offset >= index_.tokens(place.node).size()) return std::nullopt;
  if (index_.root(place.node) != root) return std::nullopt;
  return place;
}

// Returns how many tokens before the place equal the last ones of `tokens`.
uint32_t Continuations::NumEqual(const Place& place, std::span<const TokenId> tokens) const {
  const auto most = static_cast<uint32_t>(std::min<size_t>(tokens.size(), kMaxEqual));
  uint32_t num = 0, end = place.offset;
  for (NodeId node = place.node; num < most;) {
    const std::span<const TokenId> theirs = index_.tokens(node);
    while (end > 0 && num < most && theirs[end - 1] == tokens[tokens.size() - 1 - num]) {
      --end;
      ++num;
    }
    if (end > 0) break;
    node = index_.parent(node);
    if (PrefixIndex::is_root(node)) break;
    end = static_cast<uint32_t>(index_.tokens(node).size());
  }
  return num;
}

std::optional<Continuations::Match> Continuations::Find(NodeId root,
                                                        std::span<const TokenId> tokens) const {
  for (const uint32_t length : kLengths) {
    if (tokens.size() < length) continue;
    const auto place = At(root, HashOf(root, tokens.last(length)));
    if (!place) continue;
    const uint32_t num_equal = NumEqual(*place, tokens);
    if (num_equal >= length) return Match{place->node, place->offset, num_equal};
  }
  return std::nullopt;
}

std::optional<NodeId> Continuations::ChildAfter(NodeId node) const {
  const std::span<const TokenId> tokens = index_.tokens(node);
  if (tokens.size() >= kLongest) {
    const NodeId root = index_.root(node);
    const auto place = At(root, HashOf(root, tokens.last(kLongest)));
    if (place && place->offset == 0 && index_.parent(place->node) == node) return place->node;
  }
  return index_.any_child(node);
}

uint32_t Continuations::Follow(const Match& place, std::span<TokenId> drafted) const {
  uint32_t num = 0, offset = place.offset;
  for (std::optional<NodeId> node = place.node; node && num < drafted.size(); offset = 0) {
    const std::span<const TokenId> tokens = index_.tokens(*node).subspan(offset);
    const size_t taken = std::min(tokens.size(), drafted.size() - num);
    std::copy_n(tokens.begin(), taken, drafted.begin() + num);
    num += static_cast<uint32_t>(taken);
    node = ChildAfter(*node);
  }
  return num;
}

}  // namespace kvasir
