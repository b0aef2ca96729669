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

// Returns the most nodes. With `full` groups each node of a prompt has a block of each of them,
// which limits the nodes. With windows alone, most nodes have no block: only those near the end of
// a prompt have some. A long sequence has many then, so there are as many as cost about 1% of a
// block's bytes.
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

// Returns how many tokens the table of continuations is made for.
uint64_t KvCache::ContinuedTokens(const KvCacheOptions& options, uint32_t num_blocks) {
  if (!options.continues || !options.reuse) return 0;
  return uint64_t{MaxNodes(options, num_blocks)} * options.layout.block_tokens();
}

CachePlan KvCache::PlanFor(const KvCacheOptions& options, uint32_t num_blocks) {
  const uint32_t block_tokens = options.layout.block_tokens();
  return {.num_blocks = num_blocks,
          .block_bytes = options.layout.block_bytes(),
          .pool_bytes = num_blocks * options.layout.block_bytes(),
          .index_bytes = PrefixIndex::BytesFor(IndexOptions(options, num_blocks)) +
                         Continuations::BytesFor(ContinuedTokens(options, num_blocks)) +
                         Namespaces::BytesFor(options.num_namespaces) +
                         Residency::BytesFor(options.num_namespaces) +
                         KvAccounts::BytesFor(options.num_namespaces) +
                         options.eviction->bytes_for(LimitsFor(options, num_blocks)) +
                         KeptLast::BytesFor(LimitsFor(options, num_blocks)) +
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

KvEventLog::Options KvCache::EventOptions(const KvCacheOptions& options, const CachePlan& plan,
                                          std::string_view owner) {
  return {.num_nodes = MaxNodes(options, plan.num_blocks),
          .block_tokens = options.layout.block_tokens(),
          .num_roots = options.num_namespaces + 1,
          .owner = OwnerOf(owner)};
}

Status KvCache::CheckBudget(const KvCacheOptions& options) {
  KV_CHECK(options.max_blocks >= 2 && options.max_blocks < uint32_t{1} << 31);
  const CachePlan least = PlanFor(options, 2 * options.layout.num_groups());
  if (options.budget_bytes >= least.total_bytes()) return {};
  return FailField(Code::kInvalidArgument, "kv_memory",
                   "{} bytes are too few: give at least {}KiB, for {} blocks of {} bytes, {} bytes "
                   "of their index and {} of cursors",
                   options.budget_bytes, CeilDiv(least.total_bytes(), 1024), least.num_blocks,
                   least.block_bytes, least.index_bytes, least.cursor_bytes);
}

Result<std::unique_ptr<KvCache>> KvCache::Create(KvCacheOptions options) {
  KV_TRY(CheckBudget(options));
  if (!options.reuse) options.tier = nullptr;  // nothing would ever be found there
  const CachePlan plan = Plan(options);
  KV_ASSIGN(auto pool, BlockPool::Create(options.layout.block_bytes(), plan.num_blocks));
  return std::unique_ptr<KvCache>(new KvCache(std::move(options), plan, std::move(pool)));
}

KvCache::KvCache(KvCacheOptions options, CachePlan plan, std::unique_ptr<BlockPool> pool)
    : options_(std::move(options)),
      plan_(plan),
      pool_(std::move(pool)),
      policy_(
          std::make_unique<KeptLast>(options_.eviction->make(LimitsFor(options_, plan.num_blocks)),
                                     LimitsFor(options_, plan.num_blocks))),
      index_(std::make_unique<PrefixIndex>(IndexOptions(options_, plan.num_blocks))),
      continuations_(*index_, ContinuedTokens(options_, plan.num_blocks),
                     Mix64(~IndexSeed(options_.secret))),
      cursors_(std::make_unique<CursorStore>(options_.reuse ? options_.num_cursors : 0,
                                             options_.layout.block_tokens(), options_.hidden_size)),
      uses_(options_.layout, plan.num_blocks),
      owners_(*pool_),
      accounts_(options_.num_namespaces, plan.num_blocks),
      namespaces_({options_.num_namespaces, options_.max_identities}, index_->AddRoot({}), *index_,
                  accounts_),
      sealer_(MakeSealer()),
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
                  .sealer = sealer_.get(),
                  .events = options_.events},
                 options_.num_namespaces),
      reserves_(options_.layout, options_.step_tokens, *pool_, accounts_),
      loader_({.cache = *this,
               .layout = options_.layout,
               .step_tokens = options_.step_tokens,
               .pool = *pool_,
               .index = *index_,
               .namespaces = namespaces_,
               .counters = counters_,
               .tier = options_.tier}),
      matcher_({.layout = options_.layout,
                .pool = *pool_,
                .index = *index_,
                .cursors = *cursors_,
                .accounts = accounts_,
                .namespaces = namespaces_,
                .residency = residency_,
                .tier = options_.tier,
                .reuse = options_.reuse,
                .source_seed = Mix64(IndexSeed(options_.secret)),
                .source_hash_mask = options_.source_hash_mask}),
      publisher_({.layout = options_.layout,
                  .pool = *pool_,
                  .index = *index_,
                  .continuations = continuations_,
                  .cursors = *cursors_,
                  .residency = residency_,
                  .reserves = reserves_,
                  .counters = counters_,
                  .sealer = sealer_.get()}),
      forgetter_({.layout = options_.layout,
                  .index = *index_,
                  .cursors = *cursors_,
                  .namespaces = namespaces_,
                  .residency = residency_,
                  .owners = owners_}) {
  // What is sealed on the disk shall not lie open in a core dump.
  if (options_.tier != nullptr) KeepOutOfDumps({pool_->data(BlockId{0}), plan_.pool_bytes});
}

std::unique_ptr<BlockSealer> KvCache::MakeSealer() const {
  if (options_.tier == nullptr) return nullptr;
  return std::make_unique<BlockSealer>(BlockSealer::Parts{.layout = options_.layout,
                                                          .pool = *pool_,
                                                          .index = *index_,
                                                          .uses = uses_,
                                                          .owners = owners_,
                                                          .namespaces = namespaces_,
                                                          .tier = *options_.tier});
}

KvCache::~KvCache() = default;

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
  KV_CHECK(plan_.index_bytes ==
           index_->allocated_bytes() + continuations_.allocated_bytes() +
               policy_->allocated_bytes() + BlockPool::MetadataBytes(plan_.num_blocks) +
               uses_.allocated_bytes() + owners_.allocated_bytes() + namespaces_.allocated_bytes() +
               residency_.allocated_bytes() + accounts_.bytes());
  KV_CHECK(available_blocks() >= reserved_blocks());
  residency_.CheckInvariants();
}

}  // namespace kvasir
