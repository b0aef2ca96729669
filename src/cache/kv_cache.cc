#include "cache/kv_cache.h"

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "base/check.h"
#include "base/fault.h"
#include "base/result.h"
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
          .num_groups = kMaxLayerGroups};
}

}  // namespace

CachePlan KvCache::PlanFor(const KvCacheOptions& options, uint32_t num_blocks) {
  const uint32_t block_tokens = options.layout.block_tokens();
  return {
      .num_blocks = num_blocks,
      .block_bytes = options.layout.block_bytes(),
      .pool_bytes = num_blocks * options.layout.block_bytes(),
      .index_bytes = PrefixIndex::BytesFor(num_blocks, block_tokens, options.num_namespaces + 1) +
                     NamespaceBytes(options.num_namespaces) +
                     options.eviction->bytes_for(LimitsFor(options, num_blocks)) +
                     BlockPool::MetadataBytes(num_blocks) +
                     num_blocks * (sizeof(Use) + 2 * sizeof(uint32_t) /* fill_, owner_ */),
      .cursor_bytes = CursorStore::BytesFor(options.reuse ? options.num_cursors : 0, block_tokens,
                                            options.hidden_size)};
}

CachePlan KvCache::Plan(const KvCacheOptions& options) {
  // The largest number of blocks that fits: the bytes grow with it, in steps where tables double.
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
  const CachePlan least = PlanFor(options, 2);
  if (options.budget_bytes >= least.total_bytes()) return {};
  return FailField(Code::kInvalidArgument, "kv_memory",
                   "{} bytes are too few: give at least {}, for two blocks of {} bytes, "
                   "{} bytes of their index and {} of cursors",
                   options.budget_bytes, least.total_bytes(), least.block_bytes, least.index_bytes,
                   least.cursor_bytes);
}

Result<std::unique_ptr<KvCache>> KvCache::Create(KvCacheOptions options) {
  KV_TRY(CheckBudget(options));
  const CachePlan plan = Plan(options);
  KV_ASSIGN(auto pool, BlockPool::Create(options.layout, plan.num_blocks));
  return std::unique_ptr<KvCache>(new KvCache(std::move(options), plan, std::move(pool)));
}

KvCache::KvCache(KvCacheOptions options, CachePlan plan, std::unique_ptr<BlockPool> pool)
    : options_(std::move(options)),
      plan_(plan),
      pool_(std::move(pool)),
      policy_(options_.eviction->make(LimitsFor(options_, plan.num_blocks))),
      index_(std::make_unique<PrefixIndex>(
          PrefixIndex::Options{.num_blocks = plan.num_blocks,
                               .block_tokens = options_.layout.block_tokens(),
                               .num_roots = options_.num_namespaces + 1,
                               .seed = IndexSeed(options_.secret)})),
      cursors_(std::make_unique<CursorStore>(options_.reuse ? options_.num_cursors : 0,
                                             options_.layout.block_tokens(), options_.hidden_size)),
      uses_(plan.num_blocks),
      fill_(plan.num_blocks),
      owner_(plan.num_blocks) {
  pool_->set_observer(this);
  namespaces_.reserve(size_t{options_.num_namespaces} + 1);
  namespaces_.push_back({.tenant = {}, .identity = {}, .root = index_->AddRoot({})});
}

KvCache::~KvCache() = default;

NamespaceId KvCache::OpenNamespace(std::string_view tenant, const Identity& identity) {
  static constexpr Identity kNoIdentity{};
  const bool shared = FaultActive(Fault::kForeignNamespace);
  const std::string name(shared ? std::string_view() : tenant);
  const Identity& kind = shared ? kNoIdentity : identity;
  const Digest digest = Sha256Of(name);
  for (size_t i = 1; i < namespaces_.size(); ++i) {
    if (namespaces_[i].tenant == digest && namespaces_[i].identity == kind) return NamespaceId(i);
  }
  if (namespaces_.size() > options_.num_namespaces) return kSharesNothing;
  const NodeId root = index_->AddRoot(NamespaceRoot(options_.secret, name, kind));
  namespaces_.push_back({.tenant = digest, .identity = kind, .root = root});
  return NamespaceId(namespaces_.size() - 1);
}

Status KvCache::Extend(KvSequence& sequence, std::span<const TokenId> tokens) {
  if (tokens.empty()) return {};
  const uint64_t block_tokens = layout().block_tokens();
  const uint64_t old_tokens = sequence.num_tokens();
  const uint64_t new_tokens = old_tokens + tokens.size();
  BlockTable& table = sequence.table_;
  const size_t tail = old_tokens / block_tokens;  // first block that is written
  bool copy = false;
  if (tail < table.size()) {
    const BlockId id = table.ref(tail).id();
    copy = pool_->retained(id) || pool_->pin_count(id) > 1;
  }
  const uint64_t added = CeilDiv(new_tokens, block_tokens) - table.size();
  const Reservation::State* reserved = ReservedFor(sequence);
  const uint32_t available = unreserved_blocks() + (reserved != nullptr ? reserved->blocks : 0);
  if (added + copy > available) {
    if (!copy || added > available || pool_->pin_count(table.ref(tail).id()) > 1) {
      return Fail(Code::kExhausted,
                  "KV pool: {} blocks needed, but only {} of {} are free or idle and not reserved",
                  added + copy, available, plan_.num_blocks);
    }
    copy = false;
  }
  Draw(sequence, added + copy);
  for (uint64_t i = 0; i < added; ++i) table.Append(Take(sequence));
  if (copy) {
    BlockRef block = Take(sequence);
    std::memcpy(block.mutable_data(), table.ref(tail).data(), layout().block_bytes());
    table.Replace(tail, std::move(block));
    ++counters_.copied_blocks;
  } else if (const auto node = index_->node_of(table.ref(tail).id())) {
    // No block was left for a copy. Nobody pins what is below it: those go first.
    while (index_->has_children(*node)) EvictOne();
    Unlink(*node, PrefixIndex::RemoveKind::kEvicted);
  }
  sequence.tokens_.insert(sequence.tokens_.end(), tokens.begin(), tokens.end());
  for (size_t b = tail; b < table.size(); ++b) {
    SetFill(table.ref(b).id(),
            static_cast<uint32_t>(std::min(block_tokens, new_tokens - b * block_tokens)));
  }
  return {};
}

void KvCache::Truncate(KvSequence& sequence, uint32_t num_tokens) {
  KV_CHECK(num_tokens <= sequence.num_tokens());
  const uint32_t block_tokens = layout().block_tokens();
  const bool copied = CopiesTail(sequence);
  const uint32_t available = available_blocks();
  uint32_t num_popped = 0;
  for (; sequence.table_.size() > CeilDiv(num_tokens, block_tokens); ++num_popped) {
    sequence.table_.PopBack();
  }
  sequence.tokens_.resize(num_tokens);
  GiveBack(sequence, num_popped + CopiesTail(sequence) - copied, available_blocks() - available);
  sequence.num_committed_ = std::min(sequence.num_committed_, num_tokens);
  if (Publishes(sequence)) {
    while (index_->depth(sequence.node_) > sequence.num_committed_ / block_tokens) {
      sequence.node_ = index_->parent(sequence.node_);
    }
  }
  if (num_tokens % block_tokens == 0) return;
  const BlockId tail = sequence.table_.ref(num_tokens / block_tokens).id();
  if (!pool_->retained(tail) && pool_->pin_count(tail) == 1) {
    SetFill(tail, num_tokens % block_tokens);
  }
}

KvSequence KvCache::Fork(const KvSequence& sequence, uint32_t reserve_tokens) {
  KvSequence fork;
  const uint32_t block_tokens = layout().block_tokens();
  fork.namespace_ = sequence.namespace_;
  fork.epoch_ = sequence.epoch_;
  fork.shares_ = sequence.shares_;
  fork.node_ = sequence.node_;
  fork.num_committed_ = sequence.num_committed_;
  fork.tokens_.reserve(std::max(reserve_tokens, fork.num_committed_));
  fork.tokens_.assign(sequence.tokens_.begin(), sequence.tokens_.begin() + fork.num_committed_);
  const size_t blocks = CeilDiv(fork.num_committed_, block_tokens);
  fork.table_.Reserve(CeilDiv(std::max(reserve_tokens, fork.num_committed_), block_tokens));
  for (size_t b = 0; b < blocks; ++b) fork.table_.Append(sequence.table_.ref(b).Share());
  fork.reserved_ = sequence.reserved_;  // last: a fork that is not whole owes nothing
  return fork;
}

BlockRef KvCache::Take(const KvSequence& sequence) {
  if (pool_->num_free() == 0) EvictOne();
  BlockRef block = pool_->Allocate();
  uint32_t& owner = owner_[static_cast<size_t>(block.id())];
  if ((owner & kForgotten) != 0) {  // ZeroForgotten has not come to it
    std::memset(block.mutable_data(), 0, layout().block_bytes());
    --num_forgotten_;
  }
  owner = static_cast<uint32_t>(sequence.namespace_) + 1;
  // What it goes on from was erased.
  if (sequence.epoch_ != Of(sequence.namespace_).epoch) pool_->Scrub(block.id());
  return block;
}

void KvCache::EvictOne() {
  const auto victim = policy_->Victim({});
  // Whoever pins a block pins all before it: below an idle block all are idle, and one is a leaf.
  KV_CHECK(victim.has_value());
  Unlink(*index_->node_of(*victim), PrefixIndex::RemoveKind::kEvicted);
  ++counters_.evicted_blocks;
}

// A leaf leaves the index. Its block turns free, or belongs to those alone who pin it. Its parent
// may be the next to go.
void KvCache::Unlink(NodeId node, PrefixIndex::RemoveKind kind) {
  const BlockId block = index_->block(node);
  const NodeId parent = index_->parent(node);
  const auto num_tokens = static_cast<uint32_t>(index_->tokens(node).size());
  cursors_->Drop(node);
  index_->Remove(node, kind);
  LetGo(block, num_tokens, kind);
  if (!index_->is_root(parent) && pool_->pin_count(index_->block(parent)) == 0) {
    OfferIfEvictable(parent);
  }
}

// The index no longer holds `block`, of num_tokens tokens.
void KvCache::LetGo(BlockId block, uint32_t num_tokens, PrefixIndex::RemoveKind kind) {
  if (pool_->pin_count(block) > 0) {
    policy_->OnForgotten(block);
    pool_->Unretain(block);
    SetFill(block, num_tokens);
    return;
  }
  if (kind == PrefixIndex::RemoveKind::kEvicted) {
    policy_->OnEvicted(block);
  } else {
    policy_->OnForgotten(block);
  }
  pool_->Reclaim(block);
}

BlockFacts KvCache::FactsOf(NodeId node) const {
  const auto block = static_cast<size_t>(index_->block(node));
  return {.ns = NamespaceId{owner_[block] - 1},
          .group = kFullGroup,
          .depth = index_->depth(node),
          .bytes = layout().block_bytes(),
          .hits = uses_[block].hits,
          .last_use = uses_[block].last,
          .content = index_->content(node)};
}

// REQUIRES: nobody pins the node's block, and the policy holds it.
void KvCache::OfferIfEvictable(NodeId node) {
  if (!index_->has_children(node)) policy_->OnEvictable(index_->block(node), FactsOf(node));
}

void KvCache::SetFill(BlockId id, uint32_t num_tokens) {
  uint32_t& fill = fill_[static_cast<size_t>(id)];
  live_tokens_ += num_tokens;
  live_tokens_ -= fill;
  fill = num_tokens;
}

void KvCache::OnIdle(BlockId id) {
  uses_[static_cast<size_t>(id)].last = ++use_clock_;
  OfferIfEvictable(*index_->node_of(id));
}
void KvCache::OnPinned(BlockId id) {
  if (policy_->is_evictable(id)) policy_->OnHeld(id);
}
void KvCache::OnFreed(BlockId id) { SetFill(id, 0); }

uint64_t KvCache::Forget(NamespaceId ns) {
  Namespace& space = Of(ns);
  ++space.epoch;
  cursors_->Drop(space.root);
  index_->Clear(space.root, [this](NodeId node) {
    cursors_->Drop(node);
    LetGo(index_->block(node), static_cast<uint32_t>(index_->tokens(node).size()),
          PrefixIndex::RemoveKind::kForgotten);
  });
  // Also what a running sequence has not published yet, and what earlier sequences left in blocks
  // that are free by now.
  for (uint32_t b = 0; b < owner_.size(); ++b) {
    if (owner_[b] != static_cast<uint32_t>(ns) + 1) continue;
    if (pool_->is_free(BlockId{b})) {
      owner_[b] |= kForgotten;
      ++num_forgotten_;
    } else {
      pool_->Scrub(BlockId{b});
    }
  }
  return zeroing_at_ + plan_.num_blocks;
}

void KvCache::ZeroForgotten(uint64_t bytes) {
  for (uint64_t zeroed = 0; num_forgotten_ > 0 && zeroed < bytes; ++zeroing_at_) {
    const auto b = static_cast<uint32_t>(zeroing_at_ % plan_.num_blocks);
    if ((owner_[b] & kForgotten) == 0) continue;
    pool_->Scrub(BlockId{b});
    owner_[b] = 0;
    --num_forgotten_;
    zeroed += layout().block_bytes();
  }
}

void KvCache::Erase(NamespaceId ns) {
  Forget(ns);
  ZeroForgotten(plan_.pool_bytes);
}

CacheUsage KvCache::usage() const {
  return {.num_blocks = plan_.num_blocks,
          .free_blocks = pool_->num_free(),
          .idle_blocks = pool_->num_idle(),
          .pinned_blocks = pool_->num_pinned(),
          .block_bytes = layout().block_bytes(),
          .token_bytes = layout().token_bytes(),
          .cached_blocks = index_->num_nodes(),
          .cached_tokens = index_->num_tokens(),
          .live_tokens = live_tokens_,
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
                                    uses_.capacity() * sizeof(Use) +
                                    (fill_.capacity() + owner_.capacity()) * sizeof(uint32_t) +
                                    namespaces_.capacity() * sizeof(Namespace));
  KV_CHECK(namespaces_.size() <= size_t{options_.num_namespaces} + 1);
  uint64_t live_tokens = 0;
  uint32_t num_forgotten = 0;
  for (uint32_t b = 0; b < plan_.num_blocks; ++b) {
    const BlockId id{b};
    if ((owner_[b] & kForgotten) != 0) {
      KV_CHECK(pool_->is_free(id));
      ++num_forgotten;
    }
    const auto node = index_->node_of(id);
    KV_CHECK(pool_->retained(id) == node.has_value());
    const bool idle = node && pool_->pin_count(id) == 0;
    KV_CHECK(policy_->is_evictable(id) == (idle && !index_->has_children(*node)));
    // Pinned and in no node: somebody's tokens; else none are counted.
    KV_CHECK((fill_[b] > 0) == (pool_->pin_count(id) > 0 && !node));
    KV_CHECK(pool_->is_free(id) || owner_[b] != 0);
    live_tokens += fill_[b];
    if (!node || pool_->pin_count(id) == 0 || index_->is_root(index_->parent(*node))) continue;
    KV_CHECK(pool_->pin_count(index_->block(index_->parent(*node))) > 0);
  }
  KV_CHECK(live_tokens == live_tokens_);
  KV_CHECK(available_blocks() >= reserved_blocks_);
  KV_CHECK(num_forgotten == num_forgotten_);
  for (NodeId parent : cursors_->Parents()) {
    KV_CHECK(index_->is_root(parent) || index_->tokens(parent).size() == layout().block_tokens());
  }
}

}  // namespace kvasir
