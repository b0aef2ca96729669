// What KvCache does with its tier: offers of what the tier has, loads, and what it hands over.
#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"
#include "cache/kv_cache.h"
#include "cache/record_names.h"

namespace kvasir {
namespace {

// Blocks that are sealed or opened between two looks at the clock.
constexpr uint32_t kBlocksAtOnce = 8;

}  // namespace

void KvLoad::End(Read& read, ReadEnd how) {
  if (read.state == Read::State::kAsked) tier_->EndRead(read.id, how);
  read.state = Read::State::kGone;
}

void KvLoad::Drop() {
  if (tier_ == nullptr) return;
  for (Read& read : reads_) End(read, ReadEnd::kNotUsed);
  tier_ = nullptr;
}

// Looks for the longest beginning of the prompt, in whole blocks and longer than num_reused, of
// which the pool or the tier has everything that the next token sees. `path`: the nodes of the
// prompt's first blocks, as far as the pool has their `full` blocks. O(blocks) HMACs from the end
// of the path on.
TierOffer KvCache::OfferOf(NamespaceId ns, std::span<const TokenId> prompt,
                           std::span<const NodeId> path, uint32_t num_reused) const {
  const uint32_t block_tokens = layout().block_tokens();
  const uint32_t num_full = layout().num_full_groups();
  TierOffer offer;
  offer.first_block = offer.end_block = num_reused / block_tokens;
  // The last token is computed in any case: its logits are wanted.
  const auto most = static_cast<uint32_t>((prompt.size() - 1) / block_tokens);
  if (most <= offer.first_block) return offer;
  const NodeId root = Of(ns).root;
  const auto has = [&](const BlockKey& key, const KvKind& kind) {
    for (uint32_t group = kind.first_group; group < kind.first_group + kind.num_groups; ++group) {
      if (!tier_->Has(RecordNameOf(layout(), key, group))) return false;
    }
    return true;
  };
  const auto resident = [&](uint32_t b) { return b < path.size(); };
  offer.keys.push_back(offer.first_block == 0 ? index_->key(root)
                                              : index_->key(path[offer.first_block - 1]));
  // Of each block, which kinds are here or there; [block - first_block] bits.
  std::vector<uint32_t> kinds_of;
  for (uint32_t b = offer.first_block; b < most; ++b) {
    const auto tokens = prompt.subspan(size_t{b} * block_tokens, block_tokens);
    const BlockKey key =
        resident(b) ? index_->key(path[b]) : index_->NextKey(root, offer.keys.back(), tokens);
    uint32_t here = 0;
    for (uint32_t k = 0; k < layout().own_kinds().size(); ++k) {
      const KvKind& kind = layout().own_kinds()[k];
      const bool in_pool = resident(b) && index_->block(path[b], kind.first_group);
      if (in_pool || has(key, kind)) here |= 1u << k;
    }
    if (num_full > 0 && (here & 1) == 0) break;
    offer.keys.push_back(key);
    kinds_of.push_back(here);
  }
  // Of a window, the pool's blocks before first_block count too.
  const auto has_window = [&](uint32_t k, uint32_t b) {
    if (b >= offer.first_block) return (kinds_of[b - offer.first_block] >> k & 1) != 0;
    return index_->block(path[b], layout().own_kinds()[k].first_group).has_value();
  };
  const auto window_block = [&](uint32_t end, const KvKind& kind) {
    return static_cast<uint32_t>(WindowBegin(uint64_t{end} * block_tokens, kind.reach.window) /
                                 block_tokens);
  };
  const auto resumes_at = [&](uint32_t end) {
    for (uint32_t k = 0; k < layout().own_kinds().size(); ++k) {
      const KvKind& kind = layout().own_kinds()[k];
      if (kind.reach.window == 0) continue;
      for (uint32_t b = end; b-- > window_block(end, kind);) {
        if (!has_window(k, b)) return false;
      }
    }
    return true;
  };
  auto end = static_cast<uint32_t>(offer.first_block + kinds_of.size());
  while (end > offer.first_block && !resumes_at(end)) --end;
  offer.end_block = end;
  offer.keys.resize(end - offer.first_block + 1);
  for (uint32_t b = offer.first_block; b < end; ++b) {
    for (const KvKind& kind : layout().own_kinds()) {
      const bool seen = b >= window_block(end, kind);
      if (!seen || (resident(b) && index_->block(path[b], kind.first_group))) continue;
      for (uint32_t g = kind.first_group; g < kind.first_group + kind.num_groups; ++g) {
        offer.records.push_back({.block = b, .group = static_cast<uint16_t>(g)});
      }
    }
  }
  // The pool has it all by now, but not in a way that it can be matched: computing is simpler.
  if (offer.records.empty()) offer.end_block = offer.first_block;
  return offer;
}

KvLoad KvCache::TakeOffer(MatchResult& match) const {
  KvLoad load;
  if (match.offer_.empty()) return load;
  load.tier_ = tier_;
  load.counts_ = match.counts_;
  load.offer_ = std::move(match.offer_);
  load.reads_.resize(load.offer_.records.size());
  match.offer_ = {};
  // From the last one on: those before are then never colder than those after.
  for (size_t i = load.offer_.records.size(); i-- > 0;) {
    const TierOffer::Record& record = load.offer_.records[i];
    tier_->Touch(RecordNameOf(
        layout(), load.offer_.keys[record.block - load.offer_.first_block + 1], record.group));
  }
  return load;
}

void KvCache::BindLoad(KvSequence& sequence, const KvLoad& load) const {
  if (!layout().has_windows()) return;
  sequence.windows_from_ = load.end_block() * layout().block_tokens();
  sequence.AddResumePoint(sequence.windows_from_);
}

void KvCache::AskAhead(KvLoad& load, uint32_t block) const {
  if (!load.active()) return;
  const TierOffer& offer = load.offer_;
  for (uint32_t i = load.front_; i < offer.records.size() && offer.records[i].block < block; ++i) {
    KvLoad::Read& read = load.reads_[i];
    const bool has_come =
        read.state == KvLoad::Read::State::kAsked && tier_->StateOf(read.id) != ReadState::kReading;
    if (!has_come) load.End(read, ReadEnd::kNotUsed);
    load.next_ = std::max(load.next_, i + 1);
  }
  for (; load.next_ < offer.records.size() && tier_->HasReadRoom(); ++load.next_) {
    const TierOffer::Record& record = offer.records[load.next_];
    const auto id = tier_->BeginRead(
        RecordNameOf(layout(), offer.keys[record.block - offer.first_block + 1], record.group));
    if (!id && !tier_->HasReadRoom()) return;
    KvLoad::Read& read = load.reads_[load.next_];
    if (id) read.id = *id;
    read.state = id ? KvLoad::Read::State::kAsked : KvLoad::Read::State::kGone;
  }
}

// What has become of the records of one block, the load's next one.
KvCache::Front KvCache::FrontOf(KvLoad& load, uint32_t block) const {
  bool reading = false;
  for (uint32_t i = load.front_; i < load.reads_.size(); ++i) {
    if (load.offer_.records[i].block != block) break;
    KvLoad::Read& read = load.reads_[i];
    using enum KvLoad::Read::State;
    if (read.state == kGone) return Front::kMissing;
    const ReadState state = read.state == kNotAsked ? ReadState::kReading : tier_->StateOf(read.id);
    if (state == ReadState::kFailed || state == ReadState::kErased) {
      load.is_broken_ |= state == ReadState::kFailed;
      load.End(read, ReadEnd::kNotUsed);
      return Front::kMissing;
    }
    reading |= state == ReadState::kReading;
  }
  return reading ? Front::kReading : Front::kArrived;
}

// Tokens from the sequence's end to the next block that was asked for and not given up; the largest
// number when there is none.
uint32_t KvCache::TokensBeforeRead(const KvSequence& sequence, const KvLoad& load) const {
  const uint32_t block_tokens = layout().block_tokens();
  const uint32_t committed = sequence.num_committed_;
  const std::vector<TierOffer::Record>& records = load.offer_.records;
  for (uint32_t i = load.front_; i < records.size();) {
    const uint32_t block = records[i].block;
    bool all = uint64_t{block} * block_tokens >= committed;
    for (; i < records.size() && records[i].block == block; ++i) {
      all = all && load.reads_[i].state == KvLoad::Read::State::kAsked;
    }
    if (all) return block * block_tokens - committed;
  }
  return std::numeric_limits<uint32_t>::max();
}

// Passes over the records of blocks that the sequence has.
void KvCache::LetPassed(const KvSequence& sequence, KvLoad& load) const {
  const uint64_t committed = sequence.num_committed_;
  for (; load.front_ < load.reads_.size(); ++load.front_) {
    const uint64_t begin =
        uint64_t{load.offer_.records[load.front_].block} * layout().block_tokens();
    if (begin >= committed) break;
    load.End(load.reads_[load.front_], ReadEnd::kNotUsed);
  }
  load.next_ = std::max(load.next_, load.front_);
}

KvCache::Front KvCache::ContinueLoad(KvSequence& sequence, KvLoad& load,
                                     std::span<const TokenId> prompt, const ForEach& for_each,
                                     uint64_t end_ns) {
  const uint32_t block_tokens = layout().block_tokens();
  for (;;) {
    LetPassed(sequence, load);
    const uint32_t committed = sequence.num_committed_;
    const uint32_t block = committed / block_tokens;
    if (!load.active() || block >= load.offer_.end_block) {
      load.Drop();
      return Front::kEnded;
    }
    if (committed % block_tokens != 0) return Front::kMissing;  // a chunk ended within a block
    // How many of the next blocks are here.
    const uint32_t most = layout().has_windows()
                              ? std::min(kBlocksAtOnce, options_.step_tokens / block_tokens)
                              : kBlocksAtOnce;
    uint32_t num = 0;
    Front front = Front::kArrived;
    const uint32_t first_record = load.front_;
    while (num < most && block + num < load.offer_.end_block) {
      front = FrontOf(load, block + num);
      if (front != Front::kArrived) break;
      while (load.front_ < load.reads_.size() &&
             load.offer_.records[load.front_].block == block + num) {
        ++load.front_;
      }
      ++num;
    }
    load.front_ = first_record;
    if (num == 0) return front;
    const uint32_t opened = OpenBlocks(sequence, load, prompt, num, for_each);
    if (opened < num) {
      load.is_broken_ = true;
      return Front::kMissing;
    }
    if (MonotonicNs() >= end_ns) return Front::kReading;
  }
}

// Takes the load's next blocks, whose records have arrived, into the sequence. Returns how many of
// them were right; the sequence then ends before the first one that was not.
uint32_t KvCache::OpenBlocks(KvSequence& sequence, KvLoad& load, std::span<const TokenId> prompt,
                             uint32_t num, const ForEach& for_each) {
  const uint32_t block_tokens = layout().block_tokens();
  const TierOffer& offer = load.offer_;
  const uint32_t first = sequence.num_committed_ / block_tokens;
  const auto tokens_of = [&](uint32_t b) {
    return prompt.subspan(size_t{b} * block_tokens, block_tokens);
  };
  if (!Extend(sequence, prompt.subspan(sequence.num_committed_, size_t{num} * block_tokens))) {
    return 0;  // reserved: cannot be
  }
  // Somebody else may have brought `full` blocks meanwhile: Commit takes those of the index.
  std::array<std::optional<NodeId>, kBlocksAtOnce> nodes;
  if (sequence.publishes()) {
    std::optional<NodeId> node = sequence.place_.node();
    for (uint32_t i = 0; i < num && node; ++i) {
      node = nodes[i] = index_->FindChild(*node, tokens_of(first + i));
    }
  }
  const Digest& owner = Of(sequence.place_.ns()).owner;
  struct Open {
    uint32_t block, group, read;
    bool is_right;
  };
  std::vector<Open> opens;
  uint32_t r = load.front_;
  for (uint32_t i = 0; i < num; ++i) {
    for (uint32_t group = 0; group < layout().num_own_groups(); ++group) {
      const bool full = group < layout().num_full_groups();
      const bool recorded = r < offer.records.size() && offer.records[r].block == first + i &&
                            offer.records[r].group == group;
      const uint32_t read = r;
      if (recorded) ++r;
      const auto theirs = nodes[i] ? index_->block(*nodes[i], group) : std::nullopt;
      if (theirs && full) continue;
      if (theirs) {
        std::memcpy(pool_->mutable_data(sequence.tables_[group].ref(first + i).id()),
                    pool_->data(*theirs), layout().block_bytes());
      } else if (recorded) {
        opens.push_back({first + i, group, read, false});
      } else if (full || uint64_t{first + i} >= FirstWindowBlock(sequence, group)) {
        opens.push_back({first + i, group, ~uint32_t{0}, false});  // it was here, and has gone
      }
    }
  }
  for_each(static_cast<uint32_t>(opens.size()), [&](uint32_t i) {
    Open& open = opens[i];
    if (open.read == ~uint32_t{0}) return;
    const uint32_t at = open.block - offer.first_block;
    const RecordFacts facts =
        RecordFactsOf(layout(), offer.keys[at + 1], offer.keys[at], open.block == 0, open.group,
                      tokens_of(open.block), owner);
    std::byte* const block = pool_->mutable_data(sequence.tables_[open.group].ref(open.block).id());
    open.is_right = tier_->Open(load.reads_[open.read].id, facts, {block, layout().block_bytes()});
  });
  uint32_t right = num;
  for (const Open& open : opens) {
    if (!open.is_right) right = std::min(right, open.block - first);
  }
  // Those behind a wrong one stay, and are opened when the sequence comes to them.
  for (const Open& open : opens) {
    if (open.read == ~uint32_t{0} || open.block - first > right) continue;
    load.End(load.reads_[open.read], open.is_right ? ReadEnd::kOpened : ReadEnd::kDamaged);
  }
  // A block of which nothing was read is the pool's; in a model of windows alone it is passed over,
  // because of what was read behind it.
  std::array<bool, kBlocksAtOnce> is_of_pool;
  is_of_pool.fill(layout().num_full_groups() > 0);
  for (const Open& open : opens) {
    if (open.block - first >= right) break;
    load.loaded_bytes_ += layout().block_bytes();
    is_of_pool[open.block - first] = false;
  }
  for (uint32_t i = 0; i < right; ++i) load.loaded_tokens_ += is_of_pool[i] ? 0 : block_tokens;
  load.taken_tokens_ += right * block_tokens;
  // With windows only a whole load is a hit.
  if (!layout().has_windows() || first + right == offer.end_block) CountLoad(load);
  Commit(sequence, right * block_tokens, CommitKind::kRunning);
  if (right < num) {
    KV_CHECK(Truncate(sequence, (first + right) * block_tokens).has_value());
  }
  return right;
}

void KvCache::CountLoad(KvLoad& load) {
  if (!load.counts_) return;
  const uint32_t taken = load.taken_tokens_ - load.counted_taken_;
  const uint32_t loaded = load.loaded_tokens_ - load.counted_loaded_;
  counters_.hit_tokens_disk += loaded;
  counters_.hit_tokens_pool += taken - loaded;
  load.counted_taken_ = load.taken_tokens_;
  load.counted_loaded_ = load.loaded_tokens_;
}

// Has the node's blocks of a kind sealed, if it is a whole block.
void KvCache::QueueWrites(NodeId node, const KvKind& kind) {
  if (sealer_ == nullptr) return;
  for (uint32_t group = kind.first_group; group < kind.first_group + kind.num_groups; ++group) {
    sealer_->Push(*index_->block(node, group));
  }
}

// The first block whose window the sequence really has: a load skips those that only tokens of the
// load itself would see.
uint64_t KvCache::FirstWindowBlock(const KvSequence& sequence, uint32_t group) const {
  const uint32_t window = layout().kinds()[layout().kind_of(group)].reach.window;
  return WindowBegin(sequence.windows_from_, window) / layout().block_tokens();
}

}  // namespace kvasir
