#include "cache/source_key.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/fault.h"
#include "base/random.h"

namespace kvasir {
namespace {

constexpr size_t kHeaderIds = 5, kTrailerIds = 1;

TokenId IdOf(uint64_t bits) { return static_cast<TokenId>(static_cast<uint32_t>(bits)); }

// Returns how many nodes a source takes: at least one for each block.
uint32_t NodesFor(uint64_t num_ids, uint64_t tokens, uint64_t block_tokens) {
  return static_cast<uint32_t>(
      CeilDiv(std::max(kHeaderIds + num_ids + kTrailerIds, tokens), block_tokens));
}

}  // namespace

std::vector<TokenId> PackBytes(std::span<const std::byte> bytes) {
  std::vector<TokenId> ids(2 + CeilDiv(bytes.size(), sizeof(TokenId)));
  ids[0] = IdOf(bytes.size());
  ids[1] = IdOf(uint64_t{bytes.size()} >> 32);
  if (!bytes.empty()) std::memcpy(&ids[2], bytes.data(), bytes.size());
  return ids;
}

SourceKey::SourceKey(const PromptSource& source, uint32_t block_tokens, uint64_t seed,
                     uint64_t hash_mask)
    : block_tokens_(block_tokens) {
  const uint64_t num_ids = source.ids.size();
  KV_CHECK(num_ids > 0 && num_ids <= UINT32_MAX && block_tokens >= kHeaderIds + kTrailerIds);
  uint64_t hash = Mix64(seed ^ num_ids);
  for (const TokenId id : source.ids) hash = Mix64(hash ^ static_cast<uint32_t>(id));
  hash &= hash_mask;
  ids_.resize(size_t{NodesFor(num_ids, source.tokens, block_tokens)} * block_tokens);
  const TokenId header[kHeaderIds] = {kMark, IdOf(hash), IdOf(hash >> 32), IdOf(num_ids),
                                      IdOf(source.tokens)};
  std::ranges::copy(source.ids, std::ranges::copy(header, ids_.begin()).out);
  ids_.back() = IdOf(source.tokens);
}

bool SourceKey::SameSizes(std::span<const TokenId> a, std::span<const TokenId> b) {
  return IsFirstNode(a) && IsFirstNode(b) && a[3] == b[3] && a[4] == b[4];
}

uint32_t SourceKey::NumNodes(std::span<const TokenId> first_node) {
  return NodesFor(static_cast<uint32_t>(first_node[3]), static_cast<uint32_t>(first_node[4]),
                  first_node.size());
}

std::optional<NodeId> FindSource(const PrefixIndex& index, NodeId root, const SourceKey& key) {
  NodeId node = root;
  for (uint32_t i = 0; i < key.num_nodes(); ++i) {
    const auto child = index.FindChild(node, key.node(i));
    if (!child) return std::nullopt;
    // Under this fault it is any source. With another length, the walk would end inside the source
    // or after it, where no blocks stand that Match could pin.
    if (i == 0 && FaultActive(Fault::kSkippedCompare) &&
        !SourceKey::SameSizes(index.tokens(*child), key.node(0))) {
      return std::nullopt;
    }
    node = *child;
  }
  return node;
}

}  // namespace kvasir
