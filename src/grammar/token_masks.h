// TokenMasks: what nodes of grammars decide about the tokens of a vocabulary.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/byte_budget.h"
#include "base/lru_list.h"
#include "base/mutex.h"
#include "grammar/grammar_step.h"
#include "grammar/matcher.h"
#include "grammar/stack_frame.h"
#include "grammar/token_trie.h"
#include "grammar/token_walk.h"

namespace kvasir {

// Legal tokens at a node: as bits, or where that is shorter, as ids.
struct NodeMask {
  std::vector<uint64_t> bits;
  std::vector<TokenId> ids;
  std::vector<uint32_t> exits;  // nodes of the trie
  uint64_t below_exits = 0;     // nodes that go on from them, and they

  uint64_t bytes() const;
  void Shrink(const TokenTrie& trie);  // when `bits` and `exits` are known
};

// Keeps, for nodes of any grammars, the tokens that can be read from the node without leaving its
// rule, and the places of the trie at which the rule is left. Shared by all requests; what was used
// longest ago goes when the budget is full. A quarter of the budget is for the walks that find out.
// Thread-safe.
class TokenMasks {
 public:
  TokenMasks(std::shared_ptr<const TokenTrie> trie, uint64_t budget_bytes);

  const TokenTrie& trie() const { return *trie_; }
  uint64_t bytes() const;     // kept now, and of walks; at most the budget
  uint64_t computed() const;  // masks of nodes that were computed so far

  // Keeps the mask of a node ahead of its use, unless the steps are over before. O(vocabulary).
  void Compute(const Grammar& grammar, Grammar::NodeId node, WalkSteps& steps);

 private:
  friend class NodeMaskWork;
  friend class MaskWork;

  struct Key {
    uint64_t grammar;
    Grammar::NodeId node;
    std::optional<Grammar::NodeId> below;  // where the node's rule returns
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    size_t operator()(const Key& key) const;
  };
  struct Kept : LruLink {
    const Key* key;  // in kept_
    std::shared_ptr<const NodeMask> mask;
  };

  static uint64_t BytesOf(const NodeMask& mask);
  std::shared_ptr<const NodeMask> Find(const Key& key);  // null: it is not kept
  void Keep(const Key& key, std::shared_ptr<const NodeMask> mask);

  const std::shared_ptr<const TokenTrie> trie_;
  ByteBudget walks_;
  const uint64_t budget_bytes_;  // of what is kept
  mutable Mutex mutex_;
  std::unordered_map<Key, Kept, KeyHash> kept_ KV_GUARDED_BY(mutex_);
  LruList<Kept> by_use_ KV_GUARDED_BY(mutex_);  // after kept_: it lets go of them before they end
  uint64_t bytes_ KV_GUARDED_BY(mutex_) = 0;
  uint64_t computed_ KV_GUARDED_BY(mutex_) = 0;
};

// Finds masks of nodes of a grammar, those that are not kept in pieces. One thread at a time.
class NodeMaskWork {
 public:
  NodeMaskWork(TokenMasks& masks, const Grammar& grammar);  // which must outlive this
  ~NodeMaskWork();

  // Returns the mask of a node, whose rule returns to `below` if that is known; null: the steps are
  // over before it is found. REQUIRES: after null it is asked for the same one.
  std::shared_ptr<const NodeMask> Get(Grammar::NodeId node, std::optional<Grammar::NodeId> below,
                                      WalkSteps& steps);

 private:
  struct Making;

  bool Begin(Making& making, WalkSteps& steps);
  bool Run(Making& making, WalkSteps& steps);

  TokenMasks& masks_;
  const Grammar& grammar_;
  std::vector<std::unique_ptr<Making>> making_;  // each needs the next one
};

// The tokens that may come next at a matcher's places: Matcher::Mask in pieces. One thread at a
// time.
class MaskWork {
 public:
  // `masks` and `legal` must outlive it.
  MaskWork(TokenMasks& masks, Matcher at, std::span<uint64_t> legal);

  // Goes on. False: the steps are over before the end, and `legal` is not known yet.
  bool Run(WalkSteps& steps);

 private:
  bool AddPlace(const Matcher::Places::Place& place, WalkSteps& steps);

  TokenMasks& masks_;
  const Matcher at_;
  const std::span<uint64_t> legal_;
  NodeMaskWork nodes_;
  std::optional<TokenWalk> walk_;  // from exits; absent: no place had any yet
  size_t next_place_ = 0;
  // The current place's mask, the first frame that the mask does not know, and the next exit.
  std::shared_ptr<const NodeMask> mask_;
  const FrameRef* frame_ = nullptr;
  size_t exit_ = 0;
  bool knows_below_ = false, is_added_ = false, is_walking_ = false;
};

}  // namespace kvasir
