// TokenMasks: what nodes of grammars decide about the tokens of a vocabulary.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "grammar/grammar_step.h"
#include "grammar/stack_frame.h"
#include "grammar/token_trie.h"

namespace kvasir {

// Keeps, for nodes of any grammars, the tokens that can be read from the node without leaving its
// rule, and the places of the trie at which the rule is left. Shared by all requests; what was used
// longest ago goes when the budget is full. Thread-safe.
class TokenMasks {
 public:
  TokenMasks(std::shared_ptr<const TokenTrie> trie, uint64_t budget_bytes);

  const TokenTrie& trie() const { return *trie_; }
  uint64_t bytes() const;     // kept now; at most the budget
  uint64_t computed() const;  // masks of nodes that were computed so far

  // Keeps the mask of a node ahead of its use. O(vocabulary).
  void Compute(const Grammar& grammar, Grammar::NodeId node);
  // What Matcher::Mask does.
  void Fill(const Grammar& grammar, const PlaceSet<StackFrames>& places, std::span<uint64_t> legal);

 private:
  struct Key {
    uint64_t grammar;
    Grammar::NodeId node;
    std::optional<Grammar::NodeId> below;  // where the node's rule returns
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    size_t operator()(const Key& key) const;
  };
  // Legal tokens as bits, or where that is shorter, as ids.
  struct NodeMask {
    std::vector<uint64_t> bits;
    std::vector<TokenId> ids;
    std::vector<uint32_t> exits;  // nodes of the trie
    uint64_t below_exits = 0;     // nodes that go on from them, and they
    uint64_t bytes() const;
    void Shrink(const TokenTrie& trie);  // when `bits` and `exits` are known
  };
  struct Kept {
    Key key;
    std::shared_ptr<const NodeMask> mask;
  };

  std::shared_ptr<const NodeMask> Get(const Grammar& grammar, const Key& key);
  // of_twin: of the twin of the key's node, which has no `below` then; or null.
  NodeMask Make(const Grammar& grammar, const Key& key, const NodeMask* of_twin) const;
  void Keep(const Key& key, std::shared_ptr<const NodeMask> mask);

  const std::shared_ptr<const TokenTrie> trie_;
  const uint64_t budget_bytes_;
  mutable Mutex mutex_;
  std::list<Kept> kept_ KV_GUARDED_BY(mutex_);  // the last used first
  std::unordered_map<Key, std::list<Kept>::iterator, KeyHash> place_of_ KV_GUARDED_BY(mutex_);
  uint64_t bytes_ KV_GUARDED_BY(mutex_) = 0;
  uint64_t computed_ KV_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvasir
