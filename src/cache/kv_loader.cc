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

constexpr uint32_t kBlocksAtOnce = 8;  // unsealed between two looks at the clock

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
    const uint32_t unsealed = Unseal(sequence, load, prompt, num, for_each);
    if (unsealed < num) {
      load.is_broken_ = true;
      return Front::kMissing;
    }
    if (MonotonicNs() >= end_ns) return Front::kReading;
  }
}

// Lists what must be unsealed for the next `num` blocks of the sequence, which has room for them.
// Copies windows that the pool has.
std::vector<KvLoader::Unsealing> KvLoader::ListUnsealings(const KvSequence& sequence,
                                                          const KvLoad& load,
                                                          std::span<const TokenId> prompt,
                                                          uint32_t num) const {
  const KvLayout& layout = parts_.layout;
  const uint32_t block_tokens = layout.block_tokens();
  const uint32_t first = sequence.num_committed() / block_tokens;
  // Somebody else may have brought `full` blocks meanwhile: Commit takes those of the index.
  std::array<std::optional<NodeId>, kBlocksAtOnce> nodes;
  if (sequence.publishes()) {
    std::optional<NodeId> node = sequence.place_.node();
    for (uint32_t i = 0; i < num && node; ++i) {
      const auto tokens = prompt.subspan(size_t{first + i} * block_tokens, block_tokens);
      node = nodes[i] = parts_.index.FindChild(*node, tokens);
    }
  }
  const std::vector<TierOffer::Record>& records = load.offer_.records;
  std::vector<Unsealing> unsealings;
  uint32_t r = load.front_;
  for (uint32_t block = first; block < first + num; ++block) {
    for (uint32_t group = 0; group < layout.num_own_groups(); ++group) {
      const bool full = group < layout.num_full_groups();
      std::optional<uint32_t> read;
      if (r < records.size() && records[r].block == block && records[r].group == group) read = r++;
      const auto node = nodes[block - first];
      const auto theirs = node ? parts_.index.block(*node, group) : std::nullopt;
      if (theirs && full) continue;
      if (theirs) {
        std::memcpy(parts_.pool.mutable_data(sequence.tables()[group].ref(block).id()),
                    parts_.pool.data(*theirs), layout.block_bytes());
      } else if (read || full || uint64_t{block} >= sequence.FirstWindowBlock(layout, group)) {
        unsealings.push_back({.block = block, .group = group, .read = read});
      }
    }
  }
  return unsealings;
}

// Counts the tokens and bytes of the first `right` blocks from `first`. A block of which nothing
// was read is the pool's; in a model of windows alone it is passed over, because of what was read
// after it.
void KvLoader::CountUnsealed(KvLoad& load, std::span<const Unsealing> unsealings, uint32_t first,
                             uint32_t right) const {
  std::array<bool, kBlocksAtOnce> is_of_pool, is_remote{};
  const uint32_t block_tokens = parts_.layout.block_tokens();
  is_of_pool.fill(parts_.layout.num_full_groups() > 0);
  for (const Unsealing& one : unsealings) {
    if (one.block - first >= right) break;
    const TierKind from = one.read ? load.offer_.records[*one.read].from : TierKind::kDisk;
    load.loaded_bytes_[static_cast<size_t>(from)] += parts_.layout.block_bytes();
    is_of_pool[one.block - first] = false;
    is_remote[one.block - first] |= from == TierKind::kRemote;
  }
  for (uint32_t i = 0; i < right; ++i) {
    load.loaded_tokens_ += is_of_pool[i] ? 0 : block_tokens;
    load.remote_tokens_ += is_of_pool[i] || !is_remote[i] ? 0 : block_tokens;
  }
  load.taken_tokens_ += right * block_tokens;
}

// Takes the load's next blocks, whose records have arrived, into the sequence. Returns how many of
// them were right; the sequence then ends before the first one that was not.
uint32_t KvLoader::Unseal(KvSequence& sequence, KvLoad& load, std::span<const TokenId> prompt,
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
  std::vector<Unsealing> unsealings = ListUnsealings(sequence, load, prompt, num);
  const Digest& owner = parts_.namespaces.Of(sequence.ns()).owner;
  for_each(static_cast<uint32_t>(unsealings.size()), [&](uint32_t i) {
    Unsealing& one = unsealings[i];
    if (!one.read) return;
    const uint32_t at = one.block - offer.first_block;
    const RecordFacts facts = RecordFactsOf(parts_.layout, offer.keys[at + 1], offer.keys[at],
                                            one.block == 0, one.group, tokens_of(one.block), owner);
    std::byte* const block =
        parts_.pool.mutable_data(sequence.tables()[one.group].ref(one.block).id());
    one.is_right =
        parts_.tier->Unseal(load.reads_[*one.read].id, facts, {block, parts_.layout.block_bytes()});
  });
  uint32_t right = num;
  for (const Unsealing& one : unsealings) {
    if (!one.is_right) right = std::min(right, one.block - first);
  }
  // Records after a wrong one stay, and are unsealed when the sequence comes to them.
  for (const Unsealing& one : unsealings) {
    if (!one.read || one.block - first > right) continue;
    load.End(*one.read, one.is_right ? ReadEnd::kUsed : ReadEnd::kDamaged);
  }
  CountUnsealed(load, unsealings, first, right);
  // With windows only a whole load is a hit.
  const bool is_hit = !parts_.layout.has_windows() || first + right == offer.end_block;
  if (is_hit) load.CountIn(parts_.counters);
  parts_.cache.Commit(sequence, right * block_tokens, KvCache::CommitKind::kRunning);
  if (right < num) {
    KV_CHECK(parts_.cache.Truncate(sequence, (first + right) * block_tokens).has_value());
  }
  return right;
}

}  // namespace kvasir
