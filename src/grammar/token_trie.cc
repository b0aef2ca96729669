#include "grammar/token_trie.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>

namespace kvasir {

TokenTrie::TokenTrie(std::span<const std::string> texts, std::vector<TokenId> ends)
    : num_tokens_(static_cast<uint32_t>(texts.size())), ends_(std::move(ends)) {
  text_begins_.reserve(texts.size() + 1);
  text_begins_.push_back(0);
  for (size_t id = 0; id < texts.size(); ++id) {
    if (texts[id].size() <= std::numeric_limits<uint16_t>::max()) texts_ += texts[id];
    text_begins_.push_back(static_cast<uint32_t>(texts_.size()));
    // A longer one is legal nowhere.
    if (texts[id].empty() || texts[id].size() > std::numeric_limits<uint16_t>::max()) continue;
    tokens_.push_back(static_cast<TokenId>(id));
  }
  const auto text_of = [&](TokenId id) -> std::string_view {
    return texts[static_cast<uint32_t>(id)];
  };
  std::stable_sort(tokens_.begin(), tokens_.end(),
                   [&](TokenId a, TokenId b) { return text_of(a) < text_of(b); });
  std::vector<uint32_t> open;  // nodes of the text before, by depth
  std::string_view before;
  const auto close_to = [&](size_t depth) {
    for (; open.size() > depth; open.pop_back()) {
      Node& node = nodes_[open.back()];
      node.end = num_nodes();
      node.deepest = std::max<uint8_t>(node.deepest,
                                       static_cast<uint8_t>(std::min<uint32_t>(node.depth, 255)));
      if (open.size() > 1) {
        Node& above = nodes_[open[open.size() - 2]];
        above.deepest = std::max(above.deepest, node.deepest);
      }
    }
  };
  for (uint32_t i = 0; i < tokens_.size(); ++i) {
    const std::string_view text = text_of(tokens_[i]);
    const auto same = static_cast<size_t>(
        std::mismatch(before.begin(), before.end(), text.begin(), text.end()).first -
        before.begin());
    close_to(same);
    for (size_t depth = same; depth < text.size(); ++depth) {
      open.push_back(num_nodes());
      nodes_.push_back({0, i, static_cast<uint16_t>(depth + 1), static_cast<uint8_t>(text[depth])});
    }
    max_depth_ = std::max(max_depth_, static_cast<uint32_t>(text.size()));
    before = text;
  }
  close_to(0);
  nodes_.shrink_to_fit();
  num_longer_.assign(max_depth_ + 1, 0);
  for (const TokenId id : tokens_) ++num_longer_[text(id).size() - 1];
  for (size_t length = max_depth_; length-- > 0;) num_longer_[length] += num_longer_[length + 1];
  by_length_.resize(tokens_.size());
  std::vector<uint32_t> next(num_longer_.begin(), num_longer_.end());
  for (const TokenId id : tokens_) by_length_[next[text(id).size()]++] = id;
}

std::span<const TokenId> TokenTrie::LongerThan(uint32_t num_bytes) const {
  return std::span(by_length_).first(num_bytes < max_depth_ ? num_longer_[num_bytes] : 0);
}

uint64_t TokenTrie::bytes() const {
  return nodes_.capacity() * sizeof(Node) + texts_.capacity() +
         text_begins_.capacity() * sizeof(uint32_t) +
         (tokens_.capacity() + ends_.capacity() + by_length_.capacity()) * sizeof(TokenId) +
         num_longer_.capacity() * sizeof(uint32_t);
}

}  // namespace kvasir
