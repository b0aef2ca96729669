// KvCache: pool + index + tier under Match, Fetch, Extend, Commit, Truncate.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/secret.h"
#include "block/block_pool.h"
#include "block/kv_layout.h"
#include "cache/block_owners.h"
#include "cache/block_sealer.h"
#include "cache/block_uses.h"
#include "cache/identity.h"
#include "cache/kept_prompts.h"
#include "cache/kv_accounts.h"
#include "cache/kv_event_log.h"
#include "cache/kv_load.h"
#include "cache/kv_loader.h"
#include "cache/kv_match.h"
#include "cache/kv_publisher.h"
#include "cache/kv_reserves.h"
#include "cache/kv_sequence.h"
#include "cache/namespaces.h"
#include "cache/prefix_forgetter.h"
#include "cache/prefix_matcher.h"
#include "cache/reservation.h"
#include "cache/residency.h"
#include "cache/source_key.h"
#include "index/continuations.h"
#include "index/prefix_index.h"
#include "kvasir/cache_counters.h"
#include "kvasir/prefix_list.h"
#include "kvasir/receipt.h"
#include "kvasir/types.h"
#include "policy/eviction_choice.h"
#include "policy/kept_last.h"
#include "tier/tier.h"

namespace kvasir {

class CursorStore;
class KvCache;
// What one cache holds, in bytes and tokens; a snapshot, O(1).
struct CacheUsage {
  uint32_t num_blocks, free_blocks, idle_blocks, pinned_blocks;
  uint64_t block_bytes;
  uint64_t token_bytes;    // of one token in all own groups, alignment not counted
  uint64_t cached_blocks;  // in the index: all idle ones and some pinned ones
  uint64_t cached_tokens;  // of the index (a shared token counts once), and ids of sources
  uint64_t live_tokens;    // tokens of running sequences that no index node holds
  uint64_t held_bytes;     // of cached and live tokens in their blocks, alignment not counted
  uint64_t num_cursors;

  // Returns the share of the bytes of non-free blocks that hold no live or cached token; 0 when all
  // are free.
  double waste() const {
    const double used = static_cast<double>(num_blocks - free_blocks) * block_bytes;
    return used == 0 ? 0 : 1 - static_cast<double>(held_bytes) / used;
  }
};

// The arithmetic that plan and the allocator share.
struct CachePlan {
  uint32_t num_blocks;
  uint64_t block_bytes;
  uint64_t pool_bytes;    // num_blocks * block_bytes
  uint64_t index_bytes;   // nodes, tokens, tables, policy, namespaces: allocated at start, exactly
  uint64_t cursor_bytes;  // hidden states of cursors: allocated at start, exactly
  uint64_t total_bytes() const { return pool_bytes + index_bytes + cursor_bytes; }
};

struct KvCacheOptions {
  KvLayout layout;
  uint64_t budget_bytes;
  uint32_t hidden_size;                  // numbers of a Cursor's hidden state, f32
  uint32_t num_cursors = 256;            // 0 without reuse
  uint32_t num_namespaces = 16;          // owners times Identities, at most
  uint32_t max_identities = UINT32_MAX;  // of an owner, without salts
  // At most this many blocks, whatever the budget: a cache without reuse can use only so many. In
  // [2, 2^31): a cache has at least two, and PrefixIndex marks roots by bit 31.
  uint32_t max_blocks = (uint32_t{1} << 30) - 1;
  Secret secret;  // root of all salts and keys
  // The most tokens of one call to Extend, when the layout has windows.
  uint32_t step_tokens = 512;
  bool reuse = true;  // false: nothing outlives its sequence (--cache sequence, none)
  const EvictionChoice* eviction = &DefaultEvictionChoice();
  double keep_share = 0.25;  // of the pool, that marks of an account keep at most
  // Where blocks go that are written, and where others come from; nullptr: nowhere. Must outlive
  // the cache.
  Tier* tier = nullptr;
  // Where it is noted which blocks the index has of prompts of KvEventLog::owner, without salts and
  // adapters; nullptr: nowhere. Must outlive the cache. REQUIRES: made with EventOptions; no
  // sources.
  KvEventLog* events = nullptr;
  // Keeps a table of what follows each text that the index has, for Continue. REQUIRES: no sources.
  bool continues = false;
  // Ids of sources that the index has room for, beyond those of `cross` blocks.
  uint32_t source_ids = 0;
  uint64_t source_hash_mask = ~uint64_t{0};  // tests narrow it to force collisions
};

// One thread at a time. No call waits. Extend, Commit and Truncate allocate no memory while a
// sequence stays within its reserve_tokens.
//
// Invariant, beside those of Residency: KV of a token that the index holds, or that two sequences
// share, is never written again.
//
// Windows: a sequence gives back the blocks that left its window. Blocks of windows enter the index
// only at resume points (KvSequence::KeepResumePoints, and each CommitKind::kEnd), and can be
// evicted without the `full` blocks of their node. Each pin on such a block counts as one block: a
// sequence that gives back its pin needs another block later, while other sequences may keep this
// one.
//
// Sources: the KV of a source is found, kept and evicted whole. Each sequence with that source pins
// all of it until the sequence ends. It can be evicted while blocks of its prompts stay, because
// their KV depends only on source and tokens, which are both compared. A later prompt then computes
// the source again and still finds them.
class KvCache {
 public:
  ~KvCache();

  static CachePlan Plan(const KvCacheOptions& options);
  // Returns what the log of events of a cache with this plan is made with.
  static KvEventLog::Options EventOptions(const KvCacheOptions& options, const CachePlan& plan,
                                          std::string_view owner);
  // kInvalidArgument (kv_memory) when the budget does not hold two blocks of each group; the
  // message has the least budget that does. REQUIRES: max_blocks as above.
  static Status CheckBudget(const KvCacheOptions& options);
  // kInvalidArgument as CheckBudget; kExhausted when memory is refused.
  static Result<std::unique_ptr<KvCache>> Create(KvCacheOptions options);

  // Returns the namespace of (owner, identity, salt), made where it is missing. Equal names give
  // one id, which stays valid while something uses or fills the namespace, and until the call after
  // the next one. Two owners never share a block, nor do two salts of an owner, nor a salt and
  // none. A namespace without blocks and users is recycled: when there are num_namespaces of them,
  // or kMaxSalts of this owner. Beyond max_identities of an owner, or kMaxSalts with adapters, its
  // namespace of that kind without users that was entered longest ago is recycled, with its blocks.
  // `plain`: the identity without adapters; absent: `identity`. If no namespace can be recycled,
  // one without a salt takes the place of the salted one without users that was entered longest
  // ago, whose blocks are evicted. Else the result is kSharesNothing, as if reuse were off.
  // O(namespaces); O(blocks) to recycle.
  static constexpr uint32_t kMaxSalts = Namespaces::kMaxSalts;
  NamespaceId EnterNamespace(std::string_view owner, const Identity& identity,
                             std::optional<std::string_view> salt = std::nullopt,
                             const std::optional<Identity>& plain = std::nullopt);

  // Returns the namespace that EnterNamespace would find. Changes nothing. O(namespaces).
  std::optional<NamespaceId> FindNamespace(std::string_view owner, const Identity& identity,
                                           std::optional<std::string_view> salt) const;

  // Counts the tokens of `prompt` in whole resident blocks of that namespace, 0 if there is no such
  // namespace. An upper bound of what Match would reuse of them: windows are not looked at. Changes
  // and pins nothing. O(blocks) token comparisons, O(namespaces).
  uint32_t Probe(std::string_view owner, const Identity& identity,
                 std::optional<std::string_view> salt, std::span<const TokenId> prompt) const;

  // Returns what a store far away is to be asked for: the records of whole blocks that the pool
  // does not hold, of a prompt and of texts that begin with its first `head` tokens. O(blocks)
  // HMACs and token comparisons, O(namespaces). REQUIRES: the prompt is longer than that.
  LookFor LookForRest(std::string_view owner, const Identity& identity,
                      std::optional<std::string_view> salt, std::span<const TokenId> prompt,
                      uint32_t head = 0, std::span<const std::vector<TokenId>> texts = {}) const;

  // Returns the id under which the tier stores this owner's records.
  static Digest OwnerOf(std::string_view owner) { return Sha256Of(owner); }
  // Returns the account of an owner, and what it may take of the pool. O(accounts).
  AccountId EnterAccount(std::string_view owner) { return accounts_.Enter(Sha256Of(owner)); }
  // Returns the account of an owner with a quota: where all accounts have blocks, it takes the
  // place of the one without a quota that has the fewest, all of them idle, which are evicted.
  // kNobody where there is none. O(blocks).
  AccountId MakeAccount(std::string_view owner);
  // Evicts its idle blocks beyond the maximum. A node leaves with its blocks in all groups, so the
  // last one that others take may be num_own_groups() - 1 blocks into a guarantee. O(blocks).
  void SetQuota(AccountId account, const KvQuota& quota);
  const KvAccounts& accounts() const { return accounts_; }

  // Returns the longest resident prefix of `prompt` after the same source: whole blocks, then the
  // best partial block, then a Cursor. With windows, the longest beginning of it after which
  // everything that the next token sees is resident. Without a Cursor at most prompt.size() - 1
  // tokens. O(blocks) token comparisons; no HMAC. REQUIRES: the prompt does not begin with
  // SourceKey::kMark.
  MatchResult Match(NamespaceId ns, std::span<const TokenId> prompt, const MatchOptions& options);
  // Reserves the blocks that sequences which start from the match need beyond those that it pins:
  // each can then be extended to demand.tokens, whatever else runs. When only the copy of a partly
  // used block does not fit, the match gives up that block instead. kExhausted when more is
  // missing; about kv_max when it is the account's own maximum that leaves too few. REQUIRES:
  // demand describes the match's prompt.
  Result<Reservation> Reserve(MatchResult& match, const KvDemand& demand);
  // Reserves as Reserve for a match that follows Reservation::Lend. What an owner's guarantee
  // cannot have yet because of that reservation stays as it is, so that the loan can end where this
  // fails.
  Result<Reservation> ReserveLent(MatchResult& match, const KvDemand& demand);
  // Gives up the block that a match uses in part, for others to reserve: its tokens are computed
  // again. A reservation that was made for the match stays right. false: it uses none.
  bool DropTail(MatchResult& match);
  // Tells whether the account's guarantee holds all that this demand needs.
  bool IsGuaranteed(const MatchResult& match, const KvDemand& demand) const;
  // Turns a match into a sequence that holds its tokens (all committed) and draws from the
  // reservation, if there is one. It shares the match's blocks; Extend copies the partly used one.
  // `reserve_tokens`: the sequence's largest length; tables and tokens grow to it without
  // allocating.
  KvSequence Fetch(MatchResult match, uint32_t reserve_tokens,
                   const Reservation& reservation = Reservation());
  // Returns where the windows of a prompt are worth keeping: at the ends of messages, every
  // max(1024, widest window) tokens, and at its end. Empty without windows.
  std::vector<uint32_t> ResumePointsOf(uint32_t prompt_tokens,
                                       std::span<const uint32_t> message_ends) const;
  // Returns the Cursor's hidden state (f32, [hidden_size], after the final norm) of a match that
  // has one; lives as long as the match.
  std::span<const float> CursorHidden(const MatchResult& match) const;

  // Makes room for `tokens` after the sequence's end: takes free blocks, evicts idle ones, copies a
  // shared tail before it is written. Blocks come from its reservation, then from those that are
  // not reserved. When no block is left for the copy and only the index shares the tail, the index
  // drops the tail, so a sequence never needs more than its own blocks. kExhausted, with the
  // sequence unchanged, when there are not enough blocks. REQUIRES: with windows, at most
  // step_tokens. REQUIRES: sequence.has_source().
  Status Extend(KvSequence& sequence, std::span<const TokenId> tokens);
  // Loading. A sequence whose match has an offer takes its next blocks from the tier: TakeOffer
  // before Fetch, BindLoad after it, then AskAhead and ContinueLoad between steps. Each block is
  // extended, unsealed and committed as if it had been computed, so a load may stop, fail or be
  // overtaken at any block. With windows only a whole load is of use: when it does not get to its
  // end, the sequence must be closed without CommitKind::kEnd, and matched again.
  using ForEach = kvasir::ForEach;
  KvLoad TakeOffer(MatchResult& match) const { return loader_.TakeOffer(match); }
  void BindLoad(KvSequence& sequence, const KvLoad& load) const { loader_.Bind(sequence, load); }
  void AskAhead(KvLoad& load, uint32_t block) const { load.AskAhead(block); }
  using Front = KvLoad::Front;
  // Unseals the blocks that have come, from the sequence's end on, until end_ns (MonotonicNs).
  // `known`: the sequence's tokens, to the end of the offer at least. kReading also when the time
  // is over.
  Front ContinueLoad(KvSequence& sequence, KvLoad& load, std::span<const TokenId> known,
                     const ForEach& for_each, uint64_t end_ns) {
    return loader_.Continue(sequence, load, known, for_each, end_ns);
  }
  uint32_t TokensBeforeRead(const KvSequence& sequence, const KvLoad& load) const {
    return load.TokensBeforeRead(sequence.num_committed());
  }
  // Counts a prompt of which so many tokens of an offer were computed.
  void CountMiss(MissReason reason, uint32_t num_tokens) {
    counters_.CountMiss(reason, num_tokens);
  }

  // Writes by BlockSealer. Without a tier all of this is done at once.
  bool SealQueued(uint64_t end_ns, const ForEach& for_each) {
    return !sealer_ || sealer_->SealUntil(end_ns, for_each);
  }
  void DropUnsealed() {
    if (sealer_) sealer_->DropAll();
  }
  uint32_t num_unsealed() const { return sealer_ ? sealer_->size() : 0; }
  using SealPoint = BlockSealer::Point;
  SealPoint seal_point() const { return sealer_ ? sealer_->point() : SealPoint{}; }
  bool IsSealed(const SealPoint& point) const { return !sealer_ || sealer_->IsSealed(point); }
  // Returns the memory of a store's queue, beside plan(): it is a part of the tier's.
  static uint64_t WriteQueueBytes(uint32_t num_blocks) { return BlockSealer::BytesFor(num_blocks); }

  // Takes blocks for the KV of the source, after a match with source_miss. kExhausted, with the
  // sequence unchanged, when there are not enough. REQUIRES: not called before,
  // !sequence.has_source().
  Status ExtendSource(KvSequence& sequence);
  // Publishes the KV of the source, which is computed: it enters the index, or is swapped for what
  // somebody else published meanwhile (equal bits). REQUIRES: ExtendSource succeeded, not called
  // before.
  void CommitSource(KvSequence& sequence) { publisher_.CommitSource(sequence); }
  // The next `num_tokens` tokens are computed and accepted: full blocks get their BlockKey and
  // enter the index. If the index has an equal block already (equal bits), the sequence uses that
  // one and releases its own. kEnd (prompt's end, sequence's end) also publishes the partial tail,
  // if nothing after it is being computed, and if a block can be reserved for the copy that a
  // sequence with a reservation will then need. REQUIRES: num_committed + num_tokens <= the
  // sequence's num_tokens.
  using CommitKind = kvasir::CommitKind;
  void Commit(KvSequence& sequence, uint32_t num_tokens, CommitKind kind) {
    publisher_.Commit(sequence, num_tokens, kind);
  }
  // Keeps a Cursor at the sequence's committed end. Evicts the oldest Cursor when full. Does
  // nothing for a sequence that publishes nothing.
  void KeepCursor(const KvSequence& sequence, std::span<const float> hidden) {
    publisher_.KeepCursor(sequence, hidden);
  }
  // Marks the whole blocks of a sequence's first `tokens` tokens: they are evicted after all
  // others, for ttl_s since a prompt has used them. Returns how many tokens they hold; 0: the index
  // does not have them, or they are more than the account's share. O(blocks after them + marks).
  uint32_t Keep(const KvSequence& sequence, uint32_t tokens, uint32_t ttl_s);
  // Drops tokens [num_tokens, ...): uncommitted ones, or, for a rewound session, committed ones
  // (published blocks stay in the index). kNotFound, with the sequence unchanged, when the window
  // before num_tokens was given back: the caller matches again. This never happens for uncommitted
  // tokens or for num_tokens 0.
  Status Truncate(KvSequence& sequence, uint32_t num_tokens);
  // Drops blocks of `full` groups that the sequence's tokens from here on do not see. From now on
  // it publishes nothing, and its Truncate goes back to committed tokens only. Who pins a block of
  // the index pins all before it; so at the first call what it keeps beyond `beginning` is copied
  // into blocks that no node has, the last one first. kExhausted when there are
  // not enough: the sequence is as good as before, and the caller tries again. The reservation
  // becomes what is left to take. O(blocks kept). REQUIRES: all its tokens are committed; its
  // layout has `full` groups; `first` is at most the block of the next token; blocks of `kept`
  // before the tables' first ones are kept already; `beginning` is the same in all calls.
  Status Retain(KvSequence& sequence, const RetainedBlocks& retained);
  // Returns another sequence with the same committed tokens and reservation: O(blocks) pins,
  // nothing copied until written. REQUIRES: sequence.has_source(); with windows, that reservation
  // covers the fork, or neither has one: a fork pins window blocks, and each pin counts as a block.
  KvSequence Fork(const KvSequence& sequence, uint32_t reserve_tokens);
  // Makes one of two sequences of a reservation a fork of the other one, in the memory that it has:
  // its own blocks are given back at once, and what the reservation holds for it changes with them.
  // Allocates nothing while `fork` stays within its reserve_tokens. It cannot fail where `fork` has
  // written its tail and no other sequence shares that; else kExhausted as Reserve. REQUIRES: both
  // came from Fork of one sequence, or one from the other; all tokens of `sequence` are committed;
  // no windows.
  Status ForkInto(KvSequence& fork, const KvSequence& sequence);

  // Reserves what a sequence of `tokens` tokens needs that begins with another one's first
  // `head_tokens`, and reads some of its tokens in other sequences (spans, SpanPlan). kExhausted as
  // Reserve. O(1). REQUIRES (all three): a layout of `full` groups alone.
  Result<Reservation> ReserveAfter(AccountId account, uint32_t head_tokens, uint32_t tokens);
  // Returns a fork that ends after num_tokens tokens and draws from another reservation.
  KvSequence Branch(const KvSequence& sequence, uint32_t num_tokens, uint32_t reserve_tokens,
                    const Reservation& reservation);
  // Counts the next `tokens` of a sequence as computed that attention reads in `other`, `shift`
  // tokens before: their whole blocks are pins on blocks of that, with no meaning. kExhausted, with
  // the sequence unchanged, where the block that the token after them goes into cannot be taken.
  // REQUIRES: the sequence publishes nothing; all its tokens are committed; `other` has these.
  Status ReadIn(KvSequence& sequence, const KvSequence& other, std::span<const TokenId> tokens,
                uint32_t shift);
  // Counts tokens that such a sequence reads and that were not computed: by where they were.
  void CountReused(uint32_t pool, uint32_t disk, uint32_t remote) {
    counters_.reused_pool += pool;
    counters_.reused_disk += disk;
    counters_.reused_remote += remote;
  }

  // What the sequence's namespace has after the end of `tokens`: writes the tokens that followed
  // the longest end that it knows into `drafted`. Nothing where the sequence's place was erased,
  // or without KvCacheOptions::continues. Changes and pins nothing, and counts no hit.
  // O(drafted).
  struct Continuation {
    uint32_t num_tokens = 0;  // written
    uint32_t num_equal = 0;   // of the end: at least 2, at most Continuations::kMaxEqual counted
  };
  Continuation Continue(const KvSequence& sequence, std::span<const TokenId> tokens,
                        std::span<TokenId> drafted) const;

  // Forgets a namespace: from now on Match finds nothing of it, and its idle blocks are free.
  // Blocks in use are zeroed at their last release, the others by ZeroForgotten or before another
  // sequence gets them. Returns a point in that work for IsZeroed. O(blocks), without writing to
  // any.
  uint64_t Forget(NamespaceId ns) { return forgetter_.Forget(ns); }
  // Forgets all namespaces of an owner (OwnerOf).
  uint64_t Forget(const Digest& owner);
  uint64_t Forget(std::string_view owner) { return Forget(OwnerOf(owner)); }
  // Returns what the namespaces of an owner hold, as trees of runs of nodes without forks and with
  // as many hits: a run comes after the one it goes on from; of siblings the one with most hits
  // first. At most so many runs and tokens; has_more where there are others. O(runs + tokens).
  PrefixList ListPrefixes(std::string_view owner, size_t max_runs, size_t max_tokens) const;
  using Forgotten = ForgottenText;
  // Forgets tokens [first, last] of a prompt and all that was computed after them, in this
  // namespace: every block whose tokens begin with ids[0, last], other continuations and tails
  // included, and their Cursors. Then, from there back to the block of token `first`, each block of
  // `ids` after which nothing is left: no block, and no sequence that publishes; a tail and
  // Cursors that end there too. Blocks that lie wholly in one of `kept` stay, without their
  // Cursors. Blocks in use are zeroed at their last release, the others by ZeroForgotten; so are
  // all free blocks that this namespace wrote. A sequence whose last full block is forgotten
  // publishes nothing more; one before it goes on, so those that begin with ids[0, last] must have
  // left the index (KvSequence::LeaveIndex). O(blocks + forgotten nodes * cursors + nodes that are
  // in `kept`). REQUIRES: first <= last < ids.size(); `kept` was made with these ids.
  Forgotten Forget(NamespaceId ns, std::span<const TokenId> ids, uint32_t first, uint32_t last,
                   const KeptPrompts& kept = {}) {
    return forgetter_.Forget(ns, ids, first, last, kept);
  }
  // Returns what the tier has to forget with it (Tier::Forget), whether or not there is the
  // namespace. O(last) HMACs of blocks. ForgetFacts::kept does one for each block of the kept
  // prompts.
  ForgetFacts FactsToForget(std::string_view owner, const Identity& identity,
                            std::optional<std::string_view> salt, std::span<const TokenId> ids,
                            uint32_t first, uint32_t last,
                            std::shared_ptr<const KeptPrompts> kept = nullptr) const;
  // Zeroes forgotten blocks, oldest work first, until at least `bytes` are zeroed or none is left.
  void ZeroForgotten(uint64_t bytes) { owners_.Zero(bytes); }
  // Tells whether all blocks are zeroed that were free after the Forget that returned `point`.
  bool IsZeroed(uint64_t point) const { return owners_.IsZeroed(point); }
  // Forgets a namespace and zeroes all forgotten blocks. O(bytes).
  void Erase(NamespaceId ns);

  // Has this owner's blocks published from now on, and no others; absent: nothing. O(namespaces).
  // REQUIRES: options.events.
  void SetEventOwner(const std::optional<Digest>& owner);
  // Writes all published blocks into the mirror (KvEventLog::Fill). REQUIRES: options.events.
  void FillEvents(KvEventMirror* mirror) const { options_.events->Fill(*index_, mirror); }

  // Counts the tokens that only this sequence has in `full` blocks: others pin those before them.
  // All of them without such blocks. O(log blocks).
  uint32_t OwnTokens(const KvSequence& sequence) const;

  // Blocks of its tables, and those of them that others pin too. O(blocks).
  struct Pins {
    uint32_t blocks = 0, shared = 0;
  };
  Pins PinsOf(const KvSequence& sequence) const;

  // Returns how many blocks are free or idle, and how many of those are neither reserved nor
  // protected.
  uint32_t available_blocks() const { return pool_->num_free() + pool_->num_idle(); }
  uint32_t unreserved_blocks() const { return accounts_.available(kNobody); }
  uint32_t reserved_blocks() const { return accounts_.reserved(); }  // and not drawn yet
  CacheUsage usage() const;
  const CacheCounters& counters() const { return counters_; }
  const CachePlan& plan() const { return plan_; }
  const KvLayout& layout() const { return options_.layout; }
  uint32_t step_tokens() const { return options_.step_tokens; }
  void CheckInvariants() const;  // O(everything); tests

 private:
  KvCache(KvCacheOptions options, CachePlan plan, std::unique_ptr<BlockPool> pool);
  std::unique_ptr<BlockSealer> MakeSealer() const;
  static CachePlan PlanFor(const KvCacheOptions& options, uint32_t num_blocks);
  bool IsPublished(const Namespace& space) const;
  Namespace& Of(NamespaceId ns) { return namespaces_.Of(ns); }
  const Namespace& Of(NamespaceId ns) const { return namespaces_.Of(ns); }
  static uint64_t ContinuedTokens(const KvCacheOptions& options, uint32_t num_blocks);
  static PrefixIndex::Options IndexOptions(const KvCacheOptions& options, uint32_t num_blocks);
  void Count(const MatchResult& match);
  uint64_t Wanted(const MatchResult& match, const KvDemand& demand) const;
  void CopyTail(KvSequence& sequence, const KvKind& kind);
  bool HasRoomToCopy(const KvSequence& sequence, const RetainedBlocks& retained) const;
  Status CopyRetained(KvSequence& sequence, const RetainedBlocks& retained, uint32_t* copied);
  void ReserveKept(KvSequence& sequence, size_t num_blocks);
  void KeepBlocks(KvSequence& sequence, std::span<const uint32_t> kept);
  void DropTail(NodeId node, const KvKind& kind);
  BlockRef Take(const KvSequence& sequence, uint32_t group);

  KvCacheOptions options_;
  CachePlan plan_;
  std::unique_ptr<BlockPool> pool_;
  std::unique_ptr<KeptLast> policy_;
  std::unique_ptr<PrefixIndex> index_;
  Continuations continuations_;
  std::unique_ptr<CursorStore> cursors_;
  BlockUses uses_;
  BlockOwners owners_;
  KvAccounts accounts_;
  Namespaces namespaces_;
  CacheCounters counters_;
  std::unique_ptr<BlockSealer> sealer_;  // with a tier
  Residency residency_;
  KvReserves reserves_;
  KvLoader loader_;
  PrefixMatcher matcher_;
  std::vector<uint32_t> kept_places_;  // of KeepBlocks; kept for its capacity
  KvPublisher publisher_;
  PrefixForgetter forgetter_;
};

}  // namespace kvasir
