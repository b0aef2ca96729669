#include "grammar/token_masks.h"

#include <algorithm>
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
  std::shared_ptr<const NodeMask> mask;
  const NodeTwin& twin = grammar.twin(key.node);
  if (key.below || twin.node == key.node) {
    mask = std::make_shared<const NodeMask>(Make(grammar, key, nullptr, 0));
  } else {
    mask = Get(grammar, {key.grammar, twin.node, std::nullopt});
    // What longer texts would tell is told by no token.
    if (twin.bytes >= trie_->max_depth()) return mask;
    mask = std::make_shared<const NodeMask>(Make(grammar, key, mask.get(), twin.bytes));
  }
  Keep(key, mask);
  return mask;
}

TokenMasks::NodeMask TokenMasks::Make(const Grammar& grammar, const Key& key, const NodeMask* twin,
                                      uint32_t known) const {
  TokenWalk walk(grammar, *trie_);
  TokenWalk::Places places;
  WalkFrames::Frame frame = WalkFrames::kBottom;
  if (key.below) frame = walk.frames().Push(*key.below, frame);
  // Only the node: where its rule may end at once, the matcher has the place to which it returns.
  places.AddOnly(key.node, frame);
  NodeMask mask;
  mask.bits.resize(MaskWords(trie_->num_tokens()));
  if (twin != nullptr) {
    std::copy(twin->bits.begin(), twin->bits.end(), mask.bits.begin());
    for (const TokenId id : twin->ids) SetLegal(mask.bits, id);
    for (const TokenId id : trie_->LongerThan(known)) ClearLegal(mask.bits, id);
    std::copy_if(twin->exits.begin(), twin->exits.end(), std::back_inserter(mask.exits),
                 [&](uint32_t exit) { return trie_->node(exit).depth <= known; });
  }
  walk.Visit(0, trie_->num_nodes(), 0, walk.Start(places), mask.bits, &mask.exits, known);
  size_t num = 0;
  for (const uint64_t word : mask.bits) num += static_cast<size_t>(__builtin_popcountll(word));
  if (num * sizeof(TokenId) < mask.bits.size() * sizeof(uint64_t)) {
    mask.ids.reserve(num);
    for (uint32_t id = 0; id < trie_->num_tokens(); ++id) {
      if (IsLegal(mask.bits, static_cast<TokenId>(id)))
        mask.ids.push_back(static_cast<TokenId>(id));
    }
    mask.bits = {};
  }
  mask.exits.shrink_to_fit();
  for (const uint32_t exit : mask.exits) mask.below_exits += trie_->node(exit).end - exit;
  return mask;
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
