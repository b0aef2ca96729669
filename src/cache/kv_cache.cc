#include "cache/kv_cache.h"

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "base/check.h"
#include "base/no_dump.h"
#include "base/random.h"
#include "base/result.h"
#include "base/sizes.h"
#include "cache/cursor_store.h"
#include "index/prefix_index.h"

namespace kvasir {
namespace {

uint64_t IndexSeed(std::span<const uint8_t> secret) {
  const Digest digest = HmacKey(secret).Of(std::as_bytes(std::span("kvasir prefix index")));
  uint64_t seed;
  std::memcpy(&seed, digest.data(), sizeof(seed));
  return seed;
}

EvictionLimits LimitsFor(const KvCacheOptions& options, uint32_t num_blocks) {
  return {.num_blocks = num_blocks,
          .num_namespaces = options.num_namespaces + 1,
          .num_groups = static_cast<uint32_t>(options.layout.kinds().size())};
}

// With `full` groups each node of a prompt has a block of each of them, which limits the nodes.
// With windows alone, most nodes have no block: only those near the end of a prompt have some. A
// long sequence has many then, so there are as many as cost about 1% of a block's bytes.
// Sources need a node for each `cross` block of a first group, and for the ids that are asked for.
uint32_t MaxNodes(const KvCacheOptions& options, uint32_t num_blocks) {
  const KvLayout& layout = options.layout;
  const uint64_t nodes_of_block = std::clamp<uint64_t>(layout.block_bytes() / 16384, 4, 256);
  uint64_t nodes = layout.num_full_groups() == 0
                       ? num_blocks * nodes_of_block
                       : std::max(1u, num_blocks / layout.num_full_groups());
  if (layout.num_cross_groups() > 0) nodes += num_blocks / layout.num_cross_groups();
  nodes += CeilDiv(options.source_ids, layout.block_tokens());
  return static_cast<uint32_t>(std::min<uint64_t>(nodes, (uint32_t{1} << 31) - 1));
}

}  // namespace

PrefixIndex::Options KvCache::IndexOptions(const KvCacheOptions& options, uint32_t num_blocks) {
  return {.num_blocks = num_blocks,
          .block_tokens = options.layout.block_tokens(),
          .num_nodes = MaxNodes(options, num_blocks),
          .num_groups = options.layout.num_groups(),
          .num_roots = options.num_namespaces + 1,
          .seed = IndexSeed(options.secret)};
}

CachePlan KvCache::PlanFor(const KvCacheOptions& options, uint32_t num_blocks) {
  const uint32_t block_tokens = options.layout.block_tokens();
  return {.num_blocks = num_blocks,
          .block_bytes = options.layout.block_bytes(),
          .pool_bytes = num_blocks * options.layout.block_bytes(),
          .index_bytes = PrefixIndex::BytesFor(IndexOptions(options, num_blocks)) +
                         Namespaces::BytesFor(options.num_namespaces) +
                         Residency::BytesFor(options.num_namespaces) +
                         KvAccounts::BytesFor(options.num_namespaces) +
                         options.eviction->bytes_for(LimitsFor(options, num_blocks)) +
                         BlockPool::MetadataBytes(num_blocks) + BlockUses::BytesFor(num_blocks) +
                         BlockOwners::BytesFor(num_blocks),
          .cursor_bytes = CursorStore::BytesFor(options.reuse ? options.num_cursors : 0,
                                                block_tokens, options.hidden_size)};
}

CachePlan KvCache::Plan(const KvCacheOptions& options) {
  // Searches the largest number of blocks that fits. The bytes grow with the number of blocks, by
  // jumps where tables double.
  uint64_t low = 0;
  uint64_t high =
      std::min<uint64_t>(options.budget_bytes / options.layout.block_bytes(), options.max_blocks);
  while (low < high) {
    const uint64_t middle = low + (high - low + 1) / 2;
    if (PlanFor(options, static_cast<uint32_t>(middle)).total_bytes() <= options.budget_bytes) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return PlanFor(options, static_cast<uint32_t>(low));
}

Status KvCache::CheckBudget(const KvCacheOptions& options) {
  KV_CHECK(options.max_blocks >= 2 && options.max_blocks < uint32_t{1} << 31);
  const CachePlan least = PlanFor(options, 2 * options.layout.num_groups());
  if (options.budget_bytes >= least.total_bytes()) return {};
  return FailField(Code::kInvalidArgument, "kv_memory",
                   "{} bytes are too few: give at least {} ({} bytes), for {} blocks of {} bytes, "
                   "{} bytes of their index and {} of cursors",
                   options.budget_bytes, RoundedUpMib(least.total_bytes()), least.total_bytes(),
                   least.num_blocks, least.block_bytes, least.index_bytes, least.cursor_bytes);
}

Result<std::unique_ptr<KvCache>> KvCache::Create(KvCacheOptions options) {
  KV_TRY(CheckBudget(options));
  const CachePlan plan = Plan(options);
  KV_ASSIGN(auto pool, BlockPool::Create(options.layout.block_bytes(), plan.num_blocks));
  return std::unique_ptr<KvCache>(new KvCache(std::move(options), plan, std::move(pool)));
}

KvCache::KvCache(KvCacheOptions options, CachePlan plan, std::unique_ptr<BlockPool> pool)
    : options_(std::move(options)),
      plan_(plan),
      pool_(std::move(pool)),
      policy_(options_.eviction->make(LimitsFor(options_, plan.num_blocks))),
      index_(std::make_unique<PrefixIndex>(IndexOptions(options_, plan.num_blocks))),
      cursors_(std::make_unique<CursorStore>(options_.reuse ? options_.num_cursors : 0,
                                             options_.layout.block_tokens(), options_.hidden_size)),
      tier_(options_.reuse ? options_.tier : nullptr),
      uses_(options_.layout, plan.num_blocks),
      owners_(*pool_),
      source_seed_(Mix64(IndexSeed(options_.secret))),
      accounts_(options_.num_namespaces, plan.num_blocks),
      namespaces_(options_.num_namespaces, index_->AddRoot({}), *index_, accounts_),
      sealer_(tier_ == nullptr
                  ? nullptr
                  : std::make_unique<BlockSealer>(BlockSealer::Parts{.layout = options_.layout,
                                                                     .pool = *pool_,
                                                                     .index = *index_,
                                                                     .uses = uses_,
                                                                     .owners = owners_,
                                                                     .namespaces = namespaces_,
                                                                     .tier = *tier_})),
      residency_({.layout = options_.layout,
                  .pool = *pool_,
                  .index = *index_,
                  .policy = *policy_,
                  .cursors = *cursors_,
                  .uses = uses_,
                  .owners = owners_,
                  .accounts = accounts_,
                  .namespaces = namespaces_,
                  .counters = counters_,
                  .sealer = sealer_.get()},
                 options_.num_namespaces),
      reserves_(options_.layout, options_.step_tokens, *pool_, accounts_),
      loader_({.cache = *this,
               .layout = options_.layout,
               .step_tokens = options_.step_tokens,
               .pool = *pool_,
               .index = *index_,
               .namespaces = namespaces_,
               .counters = counters_,
               .tier = tier_}) {
  // What is sealed on the disk shall not lie open in a core dump.
  if (tier_ != nullptr) KeepOutOfDumps({pool_->data(BlockId{0}), plan_.pool_bytes});
}

KvCache::~KvCache() = default;

Status KvCache::Extend(KvSequence& sequence, std::span<const TokenId> tokens) {
  if (tokens.empty()) return {};
  KV_CHECK(!layout().has_windows() || tokens.size() <= options_.step_tokens);
  KV_CHECK(sequence.has_source_);
  const uint64_t block_tokens = layout().block_tokens();
  const uint64_t old_tokens = sequence.num_tokens();
  const uint64_t new_tokens = old_tokens + tokens.size();
  const size_t tail = old_tokens / block_tokens;  // first block that is written
  const size_t num_blocks = sequence.table().size();
  const uint64_t added =
      (CeilDiv(new_tokens, block_tokens) - num_blocks) * layout().num_own_groups();
  uint64_t copies = 0;
  bool others_pin = false;
  for (const KvKind& kind : layout().own_kinds()) {
    if (!reserves_.CopiesTail(sequence, kind.first_group)) continue;
    copies += kind.num_groups;
    others_pin |= pool_->pin_count(sequence.tables_[kind.first_group].ref(tail).id()) > 1;
  }
  const uint32_t available = reserves_.available(sequence);
  const bool copy = added + copies <= available;
  if (!copy && (copies == 0 || added > available || others_pin)) {
    return Fail(Code::kExhausted,
                "KV pool: {} blocks needed, {} of {} are free or idle and not reserved for others",
                added + copies, available, plan_.num_blocks);
  }
  reserves_.Draw(sequence, copy ? added + copies : added);
  for (const KvKind& kind : layout().own_kinds()) {
    if (!reserves_.CopiesTail(sequence, kind.first_group)) continue;
    if (copy) {
      CopyTail(sequence, kind);
    } else {
      DropTail(*index_->node_of(sequence.tables_[kind.first_group].ref(tail).id()), kind);
    }
  }
  for (uint32_t group = 0; group < layout().num_own_groups(); ++group) {
    BlockTable& table = sequence.tables_[group];
    while (table.size() * block_tokens < new_tokens) table.Append(Take(sequence, group));
  }
  sequence.tokens_.insert(sequence.tokens_.end(), tokens.begin(), tokens.end());
  for (const BlockTable& table : std::span(sequence.tables_).first(layout().num_own_groups())) {
    for (size_t b = tail; b < table.size(); ++b) {
      uses_.SetLive(table.ref(b).id(),
                    static_cast<uint32_t>(std::min(block_tokens, new_tokens - b * block_tokens)));
    }
  }
  return {};
}

void KvCache::CopyTail(KvSequence& sequence, const KvKind& kind) {
  const size_t tail = sequence.num_tokens() / layout().block_tokens();
  for (uint32_t group = kind.first_group; group < kind.first_group + kind.num_groups; ++group) {
    BlockTable& table = sequence.tables_[group];
    BlockRef block = Take(sequence, group);
    std::memcpy(block.mutable_data(), table.ref(tail).data(), layout().block_bytes());
    table.Replace(tail, std::move(block));
    ++counters_.copied_blocks;
  }
  if (kind.reach.window > 0) reserves_.GiveBack(sequence, kind.num_groups);
}

// When no block is left for a copy: takes the node's blocks of a kind out of the index, so that the
// only sequence that pins them can write to them.
void KvCache::DropTail(NodeId node, const KvKind& kind) {
  if (kind.reach.window > 0) {
    residency_.Detach(node, kind, PrefixIndex::RemoveKind::kEvicted);
    return residency_.Prune(node);
  }
  // Nobody pins them, and they are of one owner.
  const AccountId account = uses_.account(*index_->block(node, 0));
  while (index_->has_children(node)) {
    if (!residency_.EvictOne(account, Residency::Victims::kOwn))
      KV_CHECK(residency_.EvictOne(account, Residency::Victims::kAny));
  }
  residency_.Unlink(node, PrefixIndex::RemoveKind::kEvicted);
}

Status KvCache::Truncate(KvSequence& sequence, uint32_t num_tokens) {
  KV_CHECK(num_tokens <= sequence.num_tokens());
  const uint32_t block_tokens = layout().block_tokens();
  for (const KvKind& kind : layout().own_kinds()) {
    const size_t first = sequence.tables_[kind.first_group].first();
    const uint64_t needed = WindowBegin(num_tokens, kind.reach.window) / block_tokens;
    if (num_tokens == 0 || first <= needed) continue;
    return Fail(Code::kNotFound, "KV: the window before token {} is gone; it begins at token {}",
                num_tokens, first * block_tokens);
  }
  const uint32_t copied = reserves_.NumCopied(sequence),
                 window_blocks = reserves_.NumWindowBlocks(sequence);
  const uint32_t num_full = layout().num_full_groups();
  uint32_t popped = 0, freed = 0;
  for (uint32_t group = 0; group < layout().num_own_groups(); ++group) {
    BlockTable& table = sequence.tables_[group];
    const uint32_t available = available_blocks();
    const size_t size = table.size();
    while (table.size() > CeilDiv(num_tokens, block_tokens)) table.PopBack();
    if (group >= num_full) continue;
    popped += static_cast<uint32_t>(size - table.size());
    freed += available_blocks() - available;
  }
  sequence.tokens_.resize(num_tokens);
  const Reservation::State* reserved = KvReserves::Of(sequence);
  // When each sequence computes the prompt itself, its demand counts all blocks of the prompt, so
  // the shared ones are reserved already.
  const uint32_t lost = reserved != nullptr && !reserved->shares_prompt
                            ? freed
                            : popped + reserves_.NumCopied(sequence) - copied;
  reserves_.GiveBack(sequence, lost + (window_blocks - reserves_.NumWindowBlocks(sequence)));
  sequence.num_committed_ = std::min(sequence.num_committed_, num_tokens);
  if (sequence.place_.is_current()) {
    NodeId node = sequence.place_.node();
    const uint32_t depth = sequence.source_nodes_ + sequence.num_committed_ / block_tokens;
    while (index_->depth(node) > depth) node = index_->parent(node);
    sequence.place_.MoveTo(node);
  }
  if (num_tokens % block_tokens == 0) return {};
  for (const BlockTable& table : std::span(sequence.tables_).first(layout().num_own_groups())) {
    const BlockId tail = table.ref(num_tokens / block_tokens).id();
    if (!pool_->retained(tail) && pool_->pin_count(tail) == 1) {
      uses_.SetLive(tail, num_tokens % block_tokens);
    }
  }
  return {};
}

KvSequence KvCache::Fork(const KvSequence& sequence, uint32_t reserve_tokens) {
  KV_CHECK(sequence.has_source_);
  KvSequence fork;
  const uint32_t block_tokens = layout().block_tokens();
  const uint32_t committed = sequence.num_committed_;
  fork.place_ = sequence.place_.Share();
  fork.shares_ = sequence.shares_;
  fork.stores_ = sequence.stores_;
  fork.windows_from_ = sequence.windows_from_;
  fork.account_ = sequence.account_;
  fork.num_committed_ = committed;
  fork.resume_points_ = sequence.resume_points_;
  fork.next_resume_ = sequence.next_resume_;
  fork.source_tokens_ = sequence.source_tokens_;
  fork.source_nodes_ = sequence.source_nodes_;
  fork.source_ = sequence.source_;
  fork.tokens_.reserve(std::max(reserve_tokens, committed));
  fork.tokens_.assign(sequence.tokens_.begin(), sequence.tokens_.begin() + committed);
  const size_t blocks = CeilDiv(committed, block_tokens);
  fork.tables_.resize(layout().num_groups());
  for (uint32_t group = 0; group < layout().num_own_groups(); ++group) {
    const BlockTable& from = sequence.tables_[group];
    BlockTable& table = fork.tables_[group];
    table.Reserve(CeilDiv(std::max(reserve_tokens, committed), block_tokens));
    table.Skip(std::min(from.first(), blocks));
    for (size_t b = table.size(); b < blocks; ++b) table.Append(from.ref(b).Share());
  }
  for (uint32_t group = layout().num_own_groups(); group < layout().num_groups(); ++group) {
    const BlockTable& from = sequence.tables_[group];
    fork.tables_[group].Reserve(from.size());
    for (size_t b = 0; b < from.size(); ++b) fork.tables_[group].Append(from.ref(b).Share());
  }
  fork.reserved_ = sequence.reserved_;  // last: an unfinished fork must not give back any
  reserves_.Draw(fork, reserves_.NumWindowBlocks(fork));
  return fork;
}

Status KvCache::ForkInto(KvSequence& fork, const KvSequence& sequence) {
  KV_CHECK(&fork != &sequence && fork.reserved_ == sequence.reserved_ && !layout().has_windows());
  KV_CHECK(sequence.num_committed_ == sequence.num_tokens());
  Reservation::State* state = KvReserves::Of(fork);
  const uint64_t rest = state != nullptr ? reserves_.RestOf(fork, *state) : 0;
  for (uint32_t group = 0; group < layout().num_own_groups(); ++group) {
    const BlockTable& from = sequence.tables_[group];
    BlockTable& table = fork.tables_[group];
    size_t same = 0;  // blocks that both have already
    while (same < std::min(table.size(), from.size()) &&
           table.ref(same).id() == from.ref(same).id()) {
      ++same;
    }
    while (table.size() > same) table.PopBack();
    for (size_t b = same; b < from.size(); ++b) table.Append(from.ref(b).Share());
  }
  fork.place_ = sequence.place_.Share();
  fork.num_committed_ = sequence.num_committed_;
  fork.tokens_.assign(sequence.tokens_.begin(), sequence.tokens_.end());
  if (state == nullptr) return {};
  const uint64_t after = reserves_.RestOf(fork, *state);
  // More is the copy of a tail, for which it gave back its own.
  if (after > rest) return reserves_.Promise(*state, after - rest);
  reserves_.TakeBack(*state,
                     static_cast<uint32_t>(std::min<uint64_t>(rest - after, state->blocks)));
  return {};
}

BlockRef KvCache::Take(const KvSequence& sequence, uint32_t group) {
  BlockRef block = residency_.Take(sequence.ns(), sequence.account_, group);
  // The sequence's namespace was erased: its new blocks must not keep anything either.
  if (!sequence.has_place()) pool_->Scrub(block.id());
  return block;
}

KvCache::Pins KvCache::PinsOf(const KvSequence& sequence) const {
  Pins pins;
  for (const BlockTable& table : sequence.tables()) {
    pins.blocks += static_cast<uint32_t>(table.num_held());
    for (size_t b = table.first(); b < table.size(); ++b) {
      pins.shared += pool_->pin_count(table.ref(b).id()) > 1;
    }
  }
  return pins;
}

uint32_t KvCache::OwnTokens(const KvSequence& sequence) const {
  if (layout().num_full_groups() == 0) return sequence.num_committed();
  const BlockTable& table = sequence.table();
  // Whoever pins a block pins those before it.
  size_t low = 0, high = table.size();
  while (low < high) {
    const size_t middle = (low + high) / 2;
    if (pool_->pin_count(table.ref(middle).id()) > 1) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  const uint64_t shared = low * layout().block_tokens();
  return sequence.num_committed() -
         static_cast<uint32_t>(std::min<uint64_t>(shared, sequence.num_committed()));
}

CacheUsage KvCache::usage() const {
  return {.num_blocks = plan_.num_blocks,
          .free_blocks = pool_->num_free(),
          .idle_blocks = pool_->num_idle(),
          .pinned_blocks = pool_->num_pinned(),
          .block_bytes = layout().block_bytes(),
          .token_bytes = layout().token_bytes(),
          .cached_blocks = index_->num_blocks(),
          .cached_tokens = index_->num_tokens(),
          .live_tokens = uses_.live_tokens(),
          .held_bytes = uses_.held_bytes(),
          .num_cursors = cursors_->num_cursors()};
}

void KvCache::CheckInvariants() const {
  pool_->CheckInvariants();
  policy_->CheckInvariants();
  index_->CheckInvariants();
  KV_CHECK(plan_.total_bytes() <= options_.budget_bytes);
  KV_CHECK(plan_.pool_bytes == pool_->arena_bytes());
  KV_CHECK(plan_.cursor_bytes == cursors_->allocated_bytes());
  KV_CHECK(plan_.index_bytes == index_->allocated_bytes() + policy_->allocated_bytes() +
                                    BlockPool::MetadataBytes(plan_.num_blocks) +
                                    uses_.allocated_bytes() + owners_.allocated_bytes() +
                                    namespaces_.allocated_bytes() + residency_.allocated_bytes() +
                                    accounts_.bytes());
  KV_CHECK(available_blocks() >= reserved_blocks());
  residency_.CheckInvariants();
}

}  // namespace kvasir
