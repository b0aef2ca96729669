// TokenTrie: the bytes of all tokens of a vocabulary, as a trie.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/types.h"

namespace kvasir {

// Nodes stand in the order of their texts, each before those that go on from it. Immutable;
// thread-safe.
class TokenTrie {
 public:
  // texts[id]: the bytes that the token adds to an answer; "" for special tokens, which are not
  // text, and for ids without a token. `ends`: tokens that end an answer. O(bytes log tokens).
  TokenTrie(std::span<const std::string> texts, std::vector<TokenId> ends);

  // Returns the bytes of a token; "" of one without a text, or with one that is too long to be
  // legal.
  std::string_view text(TokenId id) const {
    const auto i = static_cast<uint32_t>(id);
    return std::string_view(texts_).substr(text_begins_[i], text_begins_[i + 1] - text_begins_[i]);
  }
  uint32_t num_tokens() const { return num_tokens_; }
  uint32_t num_nodes() const { return static_cast<uint32_t>(nodes_.size()); }
  uint32_t max_depth() const { return max_depth_; }
  std::span<const TokenId> ends() const { return ends_; }
  struct Node {
    uint32_t end;           // one past the last node that goes on from it
    uint32_t tokens_begin;  // of tokens(); its own end where the next node's begin
    uint16_t depth;         // number of bytes, from 1 on
    uint8_t byte;           // the last
    uint8_t deepest = 0;    // of it and those that go on from it; 255: or deeper
  };
  const Node& node(uint32_t i) const { return nodes_[i]; }
  bool has_children(uint32_t i) const { return nodes_[i].end > i + 1; }
  // Returns the ids of the tokens whose text ends at node i, or at nodes [i, end).
  std::span<const TokenId> tokens(uint32_t i) const { return tokens(i, i + 1); }
  std::span<const TokenId> tokens(uint32_t i, uint32_t end) const {
    const uint32_t last =
        end < nodes_.size() ? nodes_[end].tokens_begin : static_cast<uint32_t>(tokens_.size());
    return std::span(tokens_).subspan(nodes_[i].tokens_begin, last - nodes_[i].tokens_begin);
  }
  // Returns the tokens whose text is longer than so many bytes, each once.
  std::span<const TokenId> LongerThan(uint32_t num_bytes) const;
  uint64_t bytes() const;  // of memory

 private:
  uint32_t num_tokens_, max_depth_ = 0;
  std::vector<Node> nodes_;
  std::vector<TokenId> tokens_, ends_;
  std::vector<TokenId> by_length_;     // the longest first
  std::vector<uint32_t> num_longer_;   // [max_depth + 1]: tokens longer than so many bytes
  std::string texts_;                  // of all ids in order
  std::vector<uint32_t> text_begins_;  // [num_tokens + 1]
};

// Counts the words of a mask, which has tokens as bits: bit id % 64 of word id / 64.
inline size_t MaskWords(uint32_t num_tokens) { return (size_t{num_tokens} + 63) / 64; }
inline bool IsLegal(std::span<const uint64_t> mask, TokenId id) {
  return mask[static_cast<uint32_t>(id) / 64] >> (static_cast<uint32_t>(id) % 64) & 1;
}
inline void SetLegal(std::span<uint64_t> mask, TokenId id) {
  mask[static_cast<uint32_t>(id) / 64] |= uint64_t{1} << (static_cast<uint32_t>(id) % 64);
}
inline void ClearLegal(std::span<uint64_t> mask, TokenId id) {
  mask[static_cast<uint32_t>(id) / 64] &= ~(uint64_t{1} << (static_cast<uint32_t>(id) % 64));
}

}  // namespace kvasir
