#include "cache/cursor_store.h"

#include <algorithm>
#include <iterator>

#include "base/begins_with.h"
#include "base/check.h"

namespace kvasir {

uint64_t CursorStore::BytesFor(uint32_t num_cursors, uint32_t block_tokens, uint32_t hidden_size) {
  return uint64_t{num_cursors} * (sizeof(NodeId) + sizeof(Slot) + block_tokens * sizeof(TokenId) +
                                  hidden_size * sizeof(float));
}

uint64_t CursorStore::allocated_bytes() const {
  return parents_.capacity() * sizeof(NodeId) + slots_.capacity() * sizeof(Slot) +
         tails_.capacity() * sizeof(TokenId) + hidden_.capacity() * sizeof(float);
}

CursorStore::CursorStore(uint32_t num_cursors, uint32_t block_tokens, uint32_t hidden_size)
    : block_tokens_(block_tokens),
      hidden_size_(hidden_size),
      parents_(num_cursors, kNoParent),
      slots_(num_cursors),
      tails_(size_t{num_cursors} * block_tokens),
      hidden_(size_t{num_cursors} * hidden_size) {}

std::optional<size_t> CursorStore::SlotOf(NodeId parent, std::span<const TokenId> tail) const {
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (parents_[i] == parent &&
        std::ranges::equal(tail, std::span(&tails_[i * block_tokens_], slots_[i].tail_tokens))) {
      return i;
    }
  }
  return std::nullopt;
}

void CursorStore::Keep(NodeId parent, std::span<const TokenId> tail,
                       std::span<const float> hidden) {
  KV_CHECK(tail.size() < block_tokens_ && hidden.size() == hidden_size_);
  if (slots_.empty()) return;
  size_t i = SlotOf(parent, tail).value_or(slots_.size());
  if (i == slots_.size()) {
    i = std::ranges::min_element(slots_, {}, &Slot::last_use) - slots_.begin();
    if (slots_[i].last_use == 0) ++num_used_;
  }
  parents_[i] = parent;
  slots_[i] = {++clock_, static_cast<uint32_t>(tail.size())};
  std::ranges::copy(tail, tails_.begin() + i * block_tokens_);
  std::ranges::copy(hidden, hidden_.begin() + i * hidden_size_);
}

std::optional<std::span<const float>> CursorStore::Find(NodeId parent,
                                                        std::span<const TokenId> tail) {
  const auto i = SlotOf(parent, tail);
  if (!i) return std::nullopt;
  slots_[*i].last_use = ++clock_;
  return std::span<const float>(hidden_).subspan(*i * hidden_size_, hidden_size_);
}

void CursorStore::DropWith(NodeId parent, std::span<const TokenId> tokens) {
  DropIf(parent, [&](std::span<const TokenId> tail) { return BeginsWith(tail, tokens); });
}

void CursorStore::DropWithin(NodeId parent, std::span<const TokenId> tokens, size_t least) {
  DropIf(parent, [&](std::span<const TokenId> tail) {
    return tail.size() >= least && BeginsWith(tokens, tail);
  });
}

template <typename Leaves>
void CursorStore::DropIf(NodeId parent, Leaves&& leaves) {
  if (std::ranges::count(parents_, parent) == 0) return;
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (parents_[i] != parent) continue;
    if (!leaves(std::span<const TokenId>(&tails_[i * block_tokens_], slots_[i].tail_tokens))) {
      continue;
    }
    parents_[i] = kNoParent;
    slots_[i] = {};
    std::fill_n(tails_.begin() + i * block_tokens_, block_tokens_, 0);
    std::fill_n(hidden_.begin() + i * hidden_size_, hidden_size_, 0.0f);
    --num_used_;
  }
}

std::vector<NodeId> CursorStore::Parents() const {
  std::vector<NodeId> parents;
  std::ranges::copy_if(parents_, std::back_inserter(parents),
                       [](NodeId parent) { return parent != kNoParent; });
  return parents;
}

}  // namespace kvasir
