// Continuations: finds where the index has the last tokens of a text, and what followed them there.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "index/prefix_index.h"
#include "kvasir/types.h"

namespace kvasir {

// A table of places in a PrefixIndex. For each token of a full block, hashes of the namespace's
// root and of the 8, 3 and 2 tokens before it lead to that token's node and offset; of equal hashes
// the place that was added last stays. The table has no tokens and pins nothing: a place counts
// only while its node is in the index, under the asked root, and the tokens there are equal. So
// what was evicted, erased or is another namespace's is never found. Hashes are keyed and cover
// the root: one namespace's tokens do not choose which places of another one leave.
//
// All memory is allocated at construction. One thread at a time.
class Continuations {
 public:
  // Tokens before a place that its hashes are made of.
  static constexpr uint32_t kLengths[] = {8, 3, 2};
  static constexpr uint64_t kMaxBytes = uint64_t{16} << 20;
  static constexpr uint32_t kMaxEqual = 32;  // of Match::num_equal

  // Returns the bytes that a table allocates for an index of so many tokens; 0: the table keeps
  // nothing and finds nothing.
  static uint64_t BytesFor(uint64_t num_tokens);
  // `index` must outlive this; `key` is secret.
  Continuations(const PrefixIndex& index, uint64_t num_tokens, uint64_t key);
  uint64_t allocated_bytes() const { return places_.capacity() * sizeof(uint64_t); }

  // Adds the places of a full block. O(block_tokens).
  void Add(NodeId node);

  struct Match {
    NodeId node;         // a full block
    uint32_t offset;     // in it, of the token that followed
    uint32_t num_equal;  // tokens before it that are equal; at most kMaxEqual are counted
  };
  // Returns the place after the longest of kLengths that the end of `tokens` has in this namespace.
  // O(1).
  std::optional<Match> Find(NodeId root, std::span<const TokenId> tokens) const;
  // Writes what follows a place in its namespace, and returns how many tokens that are. After a
  // node comes the child that the table knows, else any one. O(drafted).
  uint32_t Follow(const Match& place, std::span<TokenId> drafted) const;

 private:
  struct Place {
    NodeId node;
    uint32_t offset;
  };
  uint64_t HashOf(NodeId root, std::span<const TokenId> tokens) const;
  void Put(uint64_t hash, NodeId node, uint32_t offset);
  std::optional<Place> At(NodeId root, uint64_t hash) const;
  uint32_t NumEqual(const Place& place, std::span<const TokenId> tokens) const;
  std::optional<NodeId> ChildAfter(NodeId node) const;

  const PrefixIndex& index_;
  const uint64_t key_;
  // [power of two]: 16 bits of the hash, 16 of the offset + 1, 32 of the node; 0: none
  std::vector<uint64_t> places_;
};

}  // namespace kvasir
