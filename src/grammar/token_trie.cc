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
    for (; open.size() > depth; open.pop_back()) nodes_[open.back()].end = num_nodes();
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
}

uint64_t TokenTrie::bytes() const {
  return nodes_.capacity() * sizeof(Node) + texts_.capacity() +
         text_begins_.capacity() * sizeof(uint32_t) +
         (tokens_.capacity() + ends_.capacity()) * sizeof(TokenId);
}

}  // namespace kvasir
