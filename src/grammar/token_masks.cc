#include "grammar/token_masks.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

#include "base/check.h"

namespace kvasir {
namespace {

// A node whose exits have more nodes of the trie below them keeps a mask for each node that it may
// return to: trying so many at each step takes longer than a mask may.
constexpr uint64_t kMaxBelowExits = 8192;
// Words of a mask that are joined, or ids whose bits are set, in the time of one step.
constexpr uint64_t kWordsInAStep = 8, kIdsInAStep = 4;
constexpr uint64_t kWalkShare = 4;  // of the budget, for walks

}  // namespace

size_t TokenMasks::KeyHash::operator()(const Key& key) const {
  const uint64_t below = key.below ? *key.below + 1ULL : 0;
  return (key.grammar * 0x9E3779B97F4A7C15ULL ^ (uint64_t{key.node} << 32 | below)) *
         0xD6E8FEB86659FD93ULL;
}

uint64_t NodeMask::bytes() const {
  return bits.capacity() * sizeof(uint64_t) + ids.capacity() * sizeof(TokenId) +
         exits.capacity() * sizeof(uint32_t) + sizeof(NodeMask);
}

void NodeMask::Shrink(const TokenTrie& trie) {
  size_t num = 0;
  for (const uint64_t word : bits) num += static_cast<size_t>(std::popcount(word));
  if (num * sizeof(TokenId) < bits.size() * sizeof(uint64_t)) {
    ids.reserve(num);
    for (size_t i = 0; i < bits.size(); ++i) {
      for (uint64_t word = bits[i]; word != 0; word &= word - 1) {
        ids.push_back(static_cast<TokenId>(i * 64 + static_cast<size_t>(std::countr_zero(word))));
      }
    }
    bits = {};
  }
  exits.shrink_to_fit();
  for (const uint32_t exit : exits) below_exits += trie.node(exit).end - exit;
}

TokenMasks::TokenMasks(std::shared_ptr<const TokenTrie> trie, uint64_t budget_bytes)
    : trie_(std::move(trie)),
      walks_(budget_bytes / kWalkShare),
      budget_bytes_(budget_bytes - walks_.max_bytes()) {}

uint64_t TokenMasks::BytesOf(const NodeMask& mask) {
  return mask.bytes() + sizeof(Kept) + 128;  // and of the maps
}

uint64_t TokenMasks::bytes() const {
  const MutexLock lock(mutex_);
  return bytes_ + walks_.taken_bytes();
}

uint64_t TokenMasks::computed() const {
  const MutexLock lock(mutex_);
  return computed_;
}

void TokenMasks::Compute(const Grammar& grammar, Grammar::NodeId node, WalkSteps& steps) {
  (void)NodeMaskWork(*this, grammar).Get(node, std::nullopt, steps);
}

std::shared_ptr<const NodeMask> TokenMasks::Find(const Key& key) {
  const MutexLock lock(mutex_);
  const auto found = kept_.find(key);
  if (found == kept_.end()) return nullptr;
  by_use_.Use(found->second);
  return found->second.mask;
}

void TokenMasks::Keep(const Key& key, std::shared_ptr<const NodeMask> mask) {
  const MutexLock lock(mutex_);
  ++computed_;
  const uint64_t bytes = BytesOf(*mask);
  if (bytes > budget_bytes_ || kept_.contains(key)) return;  // or another thread was faster
  while (bytes_ + bytes > budget_bytes_) {
    Kept& oldest = by_use_.front();
    bytes_ -= BytesOf(*oldest.mask);
    by_use_.Remove(oldest);
    kept_.erase(kept_.find(*oldest.key));
  }
  const auto made = kept_.try_emplace(key).first;
  made->second.key = &made->first;
  made->second.mask = std::move(mask);
  by_use_.Use(made->second);
  bytes_ += bytes;
}

// A mask that is not kept, while it is found.
struct NodeMaskWork::Making {
  Making(TokenMasks::Key of, const Grammar& grammar, TokenMasks& masks)
      : key(of), walk(grammar, *masks.trie_, masks.walks_), taken(masks.walks_) {}

  const TokenMasks::Key key;
  TokenWalk walk;
  NodeMask mask;
  ByteShare taken;  // by `mask`
  std::shared_ptr<const NodeMask> of_twin;
  bool has_begun = false;
  // The place in a twin that shares most bytes: the node of the trie for the current byte, and the
  // twin's next exit after it.
  uint32_t at = 0;
  size_t exit = 0;
  bool is_walking = false;
};

NodeMaskWork::NodeMaskWork(TokenMasks& masks, const Grammar& grammar)
    : masks_(masks), grammar_(grammar) {}
NodeMaskWork::~NodeMaskWork() = default;

std::shared_ptr<const NodeMask> NodeMaskWork::Get(Grammar::NodeId node,
                                                  std::optional<Grammar::NodeId> below,
                                                  WalkSteps& steps) {
  const TokenMasks::Key wanted{grammar_.id(), node, below};
  if (making_.empty()) {
    if (auto kept = masks_.Find(wanted)) return kept;
    making_.push_back(std::make_unique<Making>(wanted, grammar_, masks_));
  }
  while (true) {
    Making& making = *making_.back();
    const NodeTwin& twin = grammar_.twin(making.key.node);
    std::shared_ptr<const NodeMask> found;
    if (!making.key.below && twin.node != making.key.node && !making.of_twin) {
      const TokenMasks::Key of_twin{grammar_.id(), twin.node, std::nullopt};
      making.of_twin = masks_.Find(of_twin);
      if (!making.of_twin) {
        making_.push_back(std::make_unique<Making>(of_twin, grammar_, masks_));
        continue;
      }
    }
    if (making.of_twin && twin.bytes >= masks_.trie_->max_depth()) {
      found = making.of_twin;  // no token is longer than the texts that they have in common
    } else {
      const bool is_done = Begin(making, steps) && Run(making, steps);
      making.taken.ResizeAnyway(making.mask.bytes());
      if (!is_done) return nullptr;
      making.mask.Shrink(*masks_.trie_);
      steps.Take(making.mask.ids.size() / kIdsInAStep);
      found = std::make_shared<const NodeMask>(std::move(making.mask));
      masks_.Keep(making.key, found);
    }
    making_.pop_back();
    if (making_.empty()) return found;
    making_.back()->of_twin = std::move(found);
  }
}

bool NodeMaskWork::Begin(Making& making, WalkSteps& steps) {
  if (making.has_begun) return true;
  if (steps.are_over()) return false;
  making.has_begun = true;
  const TokenTrie& trie = *masks_.trie_;
  NodeMask& mask = making.mask;
  mask.bits.resize(MaskWords(trie.num_tokens()));
  steps.Take(mask.bits.size() / kWordsInAStep);
  // Only the node: where its rule may end at once, the matcher has the place to which it returns.
  making.walk.StartAt(making.key.node, making.key.below ? &*making.key.below : nullptr);
  const NodeMask* const of_twin = making.of_twin.get();
  const uint32_t known = of_twin == nullptr ? 0 : grammar_.twin(making.key.node).bytes;
  if (of_twin == nullptr || known > 0) making.walk.Visit(0, trie.num_nodes(), 0, known);
  if (of_twin == nullptr) return true;
  std::copy(of_twin->bits.begin(), of_twin->bits.end(), mask.bits.begin());
  for (const TokenId id : of_twin->ids) SetLegal(mask.bits, id);
  steps.Take(of_twin->ids.size() / kIdsInAStep);
  if (known == 0) return true;
  const std::span<const TokenId> longer = trie.LongerThan(known);
  for (const TokenId id : longer) ClearLegal(mask.bits, id);
  std::copy_if(of_twin->exits.begin(), of_twin->exits.end(), std::back_inserter(mask.exits),
               [&](uint32_t exit) { return trie.node(exit).depth <= known; });
  steps.Take((longer.size() + of_twin->exits.size()) / kIdsInAStep);
  return true;
}

bool NodeMaskWork::Run(Making& making, WalkSteps& steps) {
  const TokenTrie& trie = *masks_.trie_;
  NodeMask& mask = making.mask;
  const NodeTwin& twin = grammar_.twin(making.key.node);
  if (!making.of_twin || twin.bytes > 0) return making.walk.Run(mask.bits, &mask.exits, steps);
  const std::vector<uint32_t>& exits = making.of_twin->exits;
  while (making.at < trie.num_nodes()) {
    const uint32_t end = trie.node(making.at).end;
    if (!making.is_walking) {
      if (steps.are_over()) return false;
      const size_t exit = making.exit;
      while (making.exit < exits.size() && exits[making.exit] < end) ++making.exit;
      steps.Take(2 + (making.exit - exit) / kIdsInAStep +
                 (grammar_.num_ways(making.key.node) + grammar_.num_ways(twin.node)) / 4);
      if (grammar_.SameAfter(making.key.node, twin.node, trie.node(making.at).byte)) {
        const auto at = exits.begin();
        mask.exits.insert(mask.exits.end(), at + static_cast<ptrdiff_t>(exit),
                          at + static_cast<ptrdiff_t>(making.exit));
      } else {
        const std::span<const TokenId> tokens = trie.tokens(making.at, end);
        for (const TokenId id : tokens) ClearLegal(mask.bits, id);
        steps.Take(tokens.size() / kIdsInAStep);
        making.walk.Visit(making.at, end, 0);
        making.is_walking = true;
      }
    }
    if (making.is_walking && !making.walk.Run(mask.bits, &mask.exits, steps)) return false;
    making.is_walking = false;
    making.at = end;
  }
  return true;
}

MaskWork::MaskWork(TokenMasks& masks, Matcher at, std::span<uint64_t> legal)
    : masks_(masks), at_(std::move(at)), legal_(legal), nodes_(masks, at_.grammar()) {
  KV_DCHECK(legal.size() == MaskWords(masks.trie().num_tokens()));
  std::fill(legal.begin(), legal.end(), 0);
}

bool MaskWork::Run(WalkSteps& steps) {
  const auto& places = at_.places().places();
  for (; next_place_ < places.size(); ++next_place_) {
    if (!AddPlace(places[next_place_], steps)) return false;
    mask_ = nullptr;
    frame_ = nullptr;
    exit_ = 0;
    knows_below_ = is_added_ = false;
  }
  if (!at_.Accepts()) return true;
  for (const TokenId id : masks_.trie().ends()) SetLegal(legal_, id);
  return true;
}

bool MaskWork::AddPlace(const Matcher::Places::Place& place, WalkSteps& steps) {
  if (steps.are_over()) return false;
  if (!mask_) {
    mask_ = nodes_.Get(place.node, std::nullopt, steps);
    if (!mask_) return false;
    frame_ = &place.frame;
    knows_below_ = mask_->below_exits <= kMaxBelowExits || place.frame.get() == nullptr;
  }
  if (!knows_below_) {
    auto mask = nodes_.Get(place.node, place.frame->node(), steps);
    if (!mask) return false;
    mask_ = std::move(mask);
    frame_ = &place.frame->below();
    knows_below_ = true;
  }
  if (!is_added_) {
    is_added_ = true;
    for (size_t i = 0; i < mask_->bits.size(); ++i) legal_[i] |= mask_->bits[i];
    for (const TokenId id : mask_->ids) SetLegal(legal_, id);
    steps.Take(4 + mask_->bits.size() / kWordsInAStep + mask_->ids.size() / kIdsInAStep);
    if (frame_->get() == nullptr) exit_ = mask_->exits.size();  // nothing follows the root
    if (exit_ < mask_->exits.size()) {
      if (!walk_) walk_.emplace(at_.grammar(), masks_.trie(), masks_.walks_);
      walk_->StartAfter(frame_->get(), steps);
    }
  }
  for (; exit_ < mask_->exits.size(); ++exit_) {
    if (!is_walking_) {
      const uint32_t exit = mask_->exits[exit_];
      const TokenTrie::Node& node = masks_.trie().node(exit);
      walk_->Visit(exit + 1, node.end, node.depth);
      is_walking_ = true;
    }
    if (!walk_->Run(legal_, nullptr, steps)) return false;
    is_walking_ = false;
  }
  return true;
}

}  // namespace kvasir
