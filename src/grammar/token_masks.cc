#include "grammar/token_masks.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "grammar/token_walk.h"

namespace kvasir {
namespace {

// A node whose exits have more nodes of the trie below them keeps a mask for each node that it may
// return to: trying so many at each step takes longer than a mask may.
constexpr uint64_t kMaxBelowExits = 8192;

}  // namespace

size_t TokenMasks::KeyHash::operator()(const Key& key) const {
  const uint64_t below = key.below ? *key.below + 1ULL : 0;
  return (key.grammar * 0x9E3779B97F4A7C15ULL ^ (uint64_t{key.node} << 32 | below)) *
         0xD6E8FEB86659FD93ULL;
}

uint64_t TokenMasks::NodeMask::bytes() const {
  return bits.capacity() * sizeof(uint64_t) + ids.capacity() * sizeof(TokenId) +
         exits.capacity() * sizeof(uint32_t) + sizeof(NodeMask) + sizeof(Kept) + 128;  // the maps
}

TokenMasks::TokenMasks(std::shared_ptr<const TokenTrie> trie, uint64_t budget_bytes)
    : trie_(std::move(trie)), budget_bytes_(budget_bytes) {}

uint64_t TokenMasks::bytes() const {
  const MutexLock lock(mutex_);
  return bytes_;
}

uint64_t TokenMasks::computed() const {
  const MutexLock lock(mutex_);
  return computed_;
}

void TokenMasks::Fill(const Grammar& grammar, const PlaceSet<StackFrames>& places,
                      std::span<uint64_t> legal) {
  KV_DCHECK(legal.size() == MaskWords(trie_->num_tokens()));
  std::fill(legal.begin(), legal.end(), 0);
  TokenWalk walk(grammar, *trie_);
  for (const auto& place : places.places()) {
    auto mask = Get(grammar, {grammar.id(), place.node, std::nullopt});
    const FrameRef* frame = &place.frame;
    if (mask->below_exits > kMaxBelowExits && frame->get() != nullptr) {
      mask = Get(grammar, {grammar.id(), place.node, (*frame)->node()});
      frame = &(*frame)->below();
    }
    for (size_t i = 0; i < mask->bits.size(); ++i) legal[i] |= mask->bits[i];
    for (const TokenId id : mask->ids) SetLegal(legal, id);
    if (frame->get() == nullptr || mask->exits.empty()) continue;  // nothing follows the root
    const TokenWalk::StateId state = walk.After(walk.frames().FrameOf(*frame));
    for (const uint32_t exit : mask->exits) {
      const TokenTrie::Node& node = trie_->node(exit);
      walk.Visit(exit + 1, node.end, node.depth, state, legal, nullptr);
    }
  }
  if (!places.may_end()) return;
  for (const TokenId id : trie_->ends()) SetLegal(legal, id);
}

void TokenMasks::Compute(const Grammar& grammar, Grammar::NodeId node) {
  (void)Get(grammar, {grammar.id(), node, std::nullopt});
}

std::shared_ptr<const TokenMasks::NodeMask> TokenMasks::Get(const Grammar& grammar,
                                                            const Key& key) {
  {
    const MutexLock lock(mutex_);
    const auto found = place_of_.find(key);
    if (found != place_of_.end()) {
      kept_.splice(kept_.begin(), kept_, found->second);
      return found->second->mask;
    }
  }
  const NodeTwin& twin = grammar.twin(key.node);
  std::shared_ptr<const NodeMask> mask, of_twin;
  if (!key.below && twin.node != key.node) {
    of_twin = Get(grammar, {key.grammar, twin.node, std::nullopt});
    // No token is longer than the texts that they have in common.
    if (twin.bytes >= trie_->max_depth()) return of_twin;
  }
  mask = std::make_shared<const NodeMask>(Make(grammar, key, of_twin.get()));
  Keep(key, mask);
  return mask;
}

TokenMasks::NodeMask TokenMasks::Make(const Grammar& grammar, const Key& key,
                                      const NodeMask* of_twin) const {
  TokenWalk walk(grammar, *trie_);
  TokenWalk::Places places;
  WalkFrames::Frame frame = WalkFrames::kBottom;
  if (key.below) frame = walk.frames().Push(*key.below, frame);
  // Only the node: where its rule may end at once, the matcher has the place to which it returns.
  places.AddOnly(key.node, frame);
  const TokenWalk::StateId start = walk.Start(places);
  NodeMask mask;
  mask.bits.resize(MaskWords(trie_->num_tokens()));
  if (of_twin == nullptr) {
    walk.Visit(0, trie_->num_nodes(), 0, start, mask.bits, &mask.exits);
    mask.Shrink(*trie_);
    return mask;
  }
  std::copy(of_twin->bits.begin(), of_twin->bits.end(), mask.bits.begin());
  for (const TokenId id : of_twin->ids) SetLegal(mask.bits, id);
  const NodeTwin& twin = grammar.twin(key.node);
  if (twin.bytes > 0) {
    for (const TokenId id : trie_->LongerThan(twin.bytes)) ClearLegal(mask.bits, id);
    std::copy_if(of_twin->exits.begin(), of_twin->exits.end(), std::back_inserter(mask.exits),
                 [&](uint32_t exit) { return trie_->node(exit).depth <= twin.bytes; });
    walk.Visit(0, trie_->num_nodes(), 0, start, mask.bits, &mask.exits, twin.bytes);
  } else {
    auto exit = of_twin->exits.begin();
    for (uint32_t i = 0, end; i < trie_->num_nodes(); i = end) {
      end = trie_->node(i).end;
      const auto next =
          std::find_if(exit, of_twin->exits.end(), [&](uint32_t x) { return x >= end; });
      if (grammar.SameAfter(key.node, twin.node, trie_->node(i).byte)) {
        mask.exits.insert(mask.exits.end(), exit, next);
      } else {
        for (const TokenId id : trie_->tokens(i, end)) ClearLegal(mask.bits, id);
        walk.Visit(i, end, 0, start, mask.bits, &mask.exits);
      }
      exit = next;
    }
  }
  mask.Shrink(*trie_);
  return mask;
}

void TokenMasks::NodeMask::Shrink(const TokenTrie& trie) {
  size_t num = 0;
  for (const uint64_t word : bits) num += static_cast<size_t>(std::popcount(word));
  if (num * sizeof(TokenId) < bits.size() * sizeof(uint64_t)) {
    ids.reserve(num);
    for (uint32_t id = 0; id < trie.num_tokens(); ++id) {
      if (IsLegal(bits, static_cast<TokenId>(id))) ids.push_back(static_cast<TokenId>(id));
    }
    bits = {};
  }
  exits.shrink_to_fit();
  for (const uint32_t exit : exits) below_exits += trie.node(exit).end - exit;
}

void TokenMasks::Keep(const Key& key, std::shared_ptr<const NodeMask> mask) {
  const MutexLock lock(mutex_);
  ++computed_;
  const uint64_t bytes = mask->bytes();
  if (bytes > budget_bytes_ || place_of_.contains(key)) return;  // or another thread was faster
  while (bytes_ + bytes > budget_bytes_) {
    bytes_ -= kept_.back().mask->bytes();
    place_of_.erase(kept_.back().key);
    kept_.pop_back();
  }
  kept_.push_front({key, std::move(mask)});
  place_of_.emplace(key, kept_.begin());
  bytes_ += bytes;
}

}  // namespace kvasir
