// For tests of KV events: a router that follows them, as strictly as one can be.
#pragma once

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "cache/kv_cache.h"
#include "cache/kv_event_mirror.h"
#include "events/event_payload.h"

namespace kvasir {

using EventPath = std::vector<TokenId>;  // all tokens from a prompt's first to a block's last

// Reads maps. Takes no block whose parent it does not have, none twice, and removes none that it
// does not have or that has children: then it has a fault.
class EventFollower {
 public:
  void Take(const EventBatch& batch) {
    const auto bytes = batch.payload->bytes();
    const auto body = nlohmann::json::from_msgpack(bytes.begin(), bytes.end());
    Check(body.size() == 3 && body[0].is_number_float() && body[2] == 0, "not a batch");
    for (const nlohmann::json& event : body[1]) Take(event);
    last_ = batch.sequence;
  }
  std::set<EventPath> paths() const {
    std::set<EventPath> all;
    for (const auto& [hash, block] : blocks_) all.insert(PathOf(hash));
    return all;
  }
  std::optional<uint64_t> last() const { return last_; }
  size_t size() const { return blocks_.size(); }
  const std::string& fault() const { return fault_; }  // the first one; empty: none

 private:
  struct Block {
    std::optional<uint64_t> parent;
    EventPath tokens;
    uint32_t num_children = 0;
  };

  void Check(bool is_right, const char* fault) {
    if (!is_right && fault_.empty()) fault_ = fault;
  }
  void Take(const nlohmann::json& event) {
    const std::string type = event["type"];
    if (type == "AllBlocksCleared") return blocks_.clear();
    if (type == "BlockRemoved") {
      for (const uint64_t hash : event["block_hashes"]) Remove(hash);
      return;
    }
    Check(type == "BlockStored" && event["medium"] == "GPU" && event["group_idx"] == 0, "no block");
    std::optional<uint64_t> parent;
    if (!event["parent_block_hash"].is_null()) parent = event["parent_block_hash"];
    const EventPath tokens = event["token_ids"];
    const size_t block_tokens = event["block_size"];
    Check(tokens.size() == event["block_hashes"].size() * block_tokens, "tokens of other blocks");
    auto at = tokens.begin();
    for (const uint64_t hash : event["block_hashes"]) {
      const auto end = at + static_cast<ptrdiff_t>(block_tokens);
      Check(hash >> 63 == 0, "a hash of 64 bits");
      const auto before = parent ? blocks_.find(*parent) : blocks_.end();
      Check(!parent || before != blocks_.end(), "a block before its parent");
      if (before != blocks_.end()) ++before->second.num_children;
      Check(blocks_.emplace(hash, Block{parent, {at, end}}).second, "a block twice");
      parent = hash;
      at = end;
    }
  }
  void Remove(uint64_t hash) {
    const auto block = blocks_.find(hash);
    Check(block != blocks_.end(), "an unknown block left");
    if (block == blocks_.end()) return;
    Check(block->second.num_children == 0, "a block left before its children");
    const auto parent = block->second.parent;
    const auto before = parent ? blocks_.find(*parent) : blocks_.end();
    if (before != blocks_.end()) --before->second.num_children;
    blocks_.erase(block);
  }
  EventPath PathOf(uint64_t hash) const {
    const auto block = blocks_.find(hash);
    if (block == blocks_.end()) return {};
    EventPath path = block->second.parent ? PathOf(*block->second.parent) : EventPath();
    path.insert(path.end(), block->second.tokens.begin(), block->second.tokens.end());
    return path;
  }

  std::map<uint64_t, Block> blocks_;
  std::optional<uint64_t> last_;
  std::string fault_;
};

// Returns what a follower must know: the published blocks of the index. The log must not be lost.
inline std::set<EventPath> PublishedPaths(const KvCache& cache, const KvEventLog::Options& about) {
  KvEventMirror all(about.num_nodes, about.block_tokens);
  cache.FillEvents(&all);
  std::set<EventPath> paths;
  for (uint32_t node = 0; node < all.size(); ++node) {
    if (!all.at(node).is_here) continue;
    EventPath path;
    for (uint32_t at = node; at != KvEventMirror::kNoParent; at = all.at(at).parent) {
      path.insert(path.begin(), all.tokens(at).begin(), all.tokens(at).end());
    }
    paths.insert(path);
  }
  return paths;
}

}  // namespace kvasir
