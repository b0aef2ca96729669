// PromptSource: what a prompt's KV depends on beside its tokens. SourceKey: its place in the index.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "index/prefix_index.h"
#include "kvasir/types.h"

namespace kvasir {

// What precedes a prompt: the text that an encoder reads, or the bytes of an image (PackBytes).
// Prompts share KV only if their sources are equal.
struct PromptSource {
  std::span<const TokenId> ids;  // compared one by one; any values; empty: no source
  // Tokens whose K and V it has in `cross` groups. 0: none, all its KV is in the prompt's tokens.
  uint32_t tokens = 0;
};

// Returns the number of bytes, then the bytes, four in each id. Such lists can be joined: two
// different sequences of images never give the same ids.
std::vector<TokenId> PackBytes(std::span<const std::byte> bytes);

// The ids of a source in the index. They fill whole nodes, which form a chain without branches
// below the namespace's root. The prompt's nodes hang below the last one.
//
//   key   = mark, hash, hash, number of ids, tokens, id..., 0..., tokens
//
// An encoder looks both ways: two sources that begin alike have different KV in all tokens. So
// their chains must differ in the first node, and the hash of all ids stands there. Where two
// hashes are equal, only one of the sources enters the index. The mark tells a source's first node
// from a prompt's. With the sizes at the front, no key is the beginning of another one. The size at
// the end lets the last node say how many tokens the blocks of the chain hold.
class SourceKey {
 public:
  static constexpr TokenId kMark = INT32_MIN;  // never a prompt's token

  // `seed` is secret; `hash_mask` is narrowed by tests.
  SourceKey(const PromptSource& source, uint32_t block_tokens, uint64_t seed, uint64_t hash_mask);

  uint32_t num_nodes() const { return static_cast<uint32_t>(ids_.size() / block_tokens_); }
  std::span<const TokenId> node(uint32_t i) const {
    return std::span(ids_).subspan(size_t{i} * block_tokens_, block_tokens_);
  }
  static bool IsFirstNode(std::span<const TokenId> ids) { return ids[0] == kMark; }
  // Tells whether two first nodes are of sources with as many ids and as many tokens.
  static bool SameSizes(std::span<const TokenId> a, std::span<const TokenId> b);
  static uint32_t NumNodes(std::span<const TokenId> first_node);
  // Reads the source's tokens from the ids of a key's last node.
  static uint32_t TokensOf(std::span<const TokenId> last_node) {
    return static_cast<uint32_t>(last_node.back());
  }

 private:
  uint32_t block_tokens_;
  std::vector<TokenId> ids_;
};

// Finds the source's last node; absent: a node is missing. O(ids).
std::optional<NodeId> FindSource(const PrefixIndex& index, NodeId root, const SourceKey& key);

}  // namespace kvasir
