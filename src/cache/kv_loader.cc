#include "cache/kv_loader.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "cache/kv_cache.h"
#include "cache/record_names.h"

namespace kvasir {
namespace {

constexpr uint32_t kBlocksAtOnce = 8;  // opened between two looks at the clock

}  // namespace

KvLoad KvLoader::TakeOffer(MatchResult& match) const {
  if (match.offer_.empty()) return {};
  return {parts_.tier, parts_.layout, std::exchange(match.offer_, {}), match.counts_};
}

void KvLoader::Bind(KvSequence& sequence, const KvLoad& load) const {
  if (!parts_.layout.has_windows()) return;
  sequence.windows_from_ = load.end_block() * parts_.layout.block_tokens();
  sequence.AddResumePoint(sequence.windows_from_);
}

KvLoad::Front KvLoader::Continue(KvSequence& sequence, KvLoad& load,
                                 std::span<const TokenId> prompt, const ForEach& for_each,
                                 uint64_t end_ns) {
  const uint32_t block_tokens = parts_.layout.block_tokens();
  for (;;) {
    load.PassBefore(sequence.num_committed());
    const uint32_t committed = sequence.num_committed();
    const uint32_t block = committed / block_tokens;
    if (!load.active() || block >= load.offer_.end_block) {
      load.Drop();
      return Front::kEnded;
    }
    if (committed % block_tokens != 0) return Front::kMissing;  // a chunk ended within a block
    // How many of the next blocks are here.
    const uint32_t most = parts_.layout.has_windows()
                              ? std::min(kBlocksAtOnce, parts_.step_tokens / block_tokens)
                              : kBlocksAtOnce;
    Front front;
    const uint32_t num = load.NumArrived(block, most, &front);
    if (num == 0) return front;
    const uint32_t opened = Open(sequence, load, prompt, num, for_each);
    if (opened < num) {
      load.is_broken_ = true;
      return Front::kMissing;
    }
    if (MonotonicNs() >= end_ns) return Front::kReading;
  }
}

// Takes the load's next blocks, whose records have arrived, into the sequence. Returns how many of
// them were right; the sequence then ends before the first one that was not.
uint32_t KvLoader::Open(KvSequence& sequence, KvLoad& load, std::span<const TokenId> prompt,
                        uint32_t num, const ForEach& for_each) {
  const uint32_t block_tokens = parts_.layout.block_tokens();
  const TierOffer& offer = load.offer_;
  const uint32_t first = sequence.num_committed() / block_tokens;
  const auto tokens_of = [&](uint32_t b) {
    return prompt.subspan(size_t{b} * block_tokens, block_tokens);
  };
  if (!parts_.cache.Extend(sequence,
                           prompt.subspan(sequence.num_committed(), size_t{num} * block_tokens))) {
    return 0;  // reserved: cannot be
  }
  // Somebody else may have brought `full` blocks meanwhile: Commit takes those of the index.
  std::array<std::optional<NodeId>, kBlocksAtOnce> nodes;
  if (sequence.publishes()) {
    std::optional<NodeId> node = sequence.place_.node();
    for (uint32_t i = 0; i < num && node; ++i) {
      node = nodes[i] = parts_.index.FindChild(*node, tokens_of(first + i));
    }
  }
  const Digest& owner = parts_.namespaces.Of(sequence.ns()).owner;
  struct Open {
    uint32_t block, group, read;
    bool is_right;
  };
  std::vector<Open> opens;
  uint32_t r = load.front_;
  for (uint32_t i = 0; i < num; ++i) {
    for (uint32_t group = 0; group < parts_.layout.num_own_groups(); ++group) {
      const bool full = group < parts_.layout.num_full_groups();
      const bool recorded = r < offer.records.size() && offer.records[r].block == first + i &&
                            offer.records[r].group == group;
      const uint32_t read = r;
      if (recorded) ++r;
      const auto theirs = nodes[i] ? parts_.index.block(*nodes[i], group) : std::nullopt;
      if (theirs && full) continue;
      if (theirs) {
        std::memcpy(parts_.pool.mutable_data(sequence.tables()[group].ref(first + i).id()),
                    parts_.pool.data(*theirs), parts_.layout.block_bytes());
      } else if (recorded) {
        opens.push_back({first + i, group, read, false});
      } else if (full || uint64_t{first + i} >= sequence.FirstWindowBlock(parts_.layout, group)) {
        opens.push_back({first + i, group, ~uint32_t{0}, false});  // it was here, and has gone
      }
    }
  }
  for_each(static_cast<uint32_t>(opens.size()), [&](uint32_t i) {
    Open& open = opens[i];
    if (open.read == ~uint32_t{0}) return;
    const uint32_t at = open.block - offer.first_block;
    const RecordFacts facts =
        RecordFactsOf(parts_.layout, offer.keys[at + 1], offer.keys[at], open.block == 0,
                      open.group, tokens_of(open.block), owner);
    std::byte* const block =
        parts_.pool.mutable_data(sequence.tables()[open.group].ref(open.block).id());
    open.is_right =
        parts_.tier->Open(load.reads_[open.read].id, facts, {block, parts_.layout.block_bytes()});
  });
  uint32_t right = num;
  for (const Open& open : opens) {
    if (!open.is_right) right = std::min(right, open.block - first);
  }
  // Those behind a wrong one stay, and are opened when the sequence comes to them.
  for (const Open& open : opens) {
    if (open.read == ~uint32_t{0} || open.block - first > right) continue;
    load.End(open.read, open.is_right ? ReadEnd::kOpened : ReadEnd::kDamaged);
  }
  // A block of which nothing was read is the pool's; in a model of windows alone it is passed over,
  // because of what was read behind it.
  std::array<bool, kBlocksAtOnce> is_of_pool;
  is_of_pool.fill(parts_.layout.num_full_groups() > 0);
  for (const Open& open : opens) {
    if (open.block - first >= right) break;
    load.loaded_bytes_ += parts_.layout.block_bytes();
    is_of_pool[open.block - first] = false;
  }
  for (uint32_t i = 0; i < right; ++i) load.loaded_tokens_ += is_of_pool[i] ? 0 : block_tokens;
  load.taken_tokens_ += right * block_tokens;
  // With windows only a whole load is a hit.
  if (!parts_.layout.has_windows() || first + right == offer.end_block)
    load.CountIn(parts_.counters);
  parts_.cache.Commit(sequence, right * block_tokens, KvCache::CommitKind::kRunning);
  if (right < num) {
    KV_CHECK(parts_.cache.Truncate(sequence, (first + right) * block_tokens).has_value());
  }
  return right;
}

}  // namespace kvasir
