// Reservations of KvCache: how many blocks are promised, and to whom.
#include <algorithm>

#include "base/bytes.h"
#include "base/check.h"
#include "base/result.h"
#include "cache/kv_cache.h"

namespace kvasir {

uint64_t KvDemand::blocks(const KvLayout& layout, uint32_t step_tokens) const {
  const uint64_t shared = shares_prompt ? prompt_tokens / layout.block_tokens() : 0;
  uint64_t sum = layout.num_full_groups() * shared;
  sum += layout.SourceBlocks(source_tokens);  // forks share it in any case
  for (const KvKind& kind : layout.own_kinds()) {
    sum += n * layout.SequenceBlocks(kind, tokens, step_tokens);
  }
  return sum - n * layout.num_full_groups() * shared;
}

uint64_t KvDemand::MaxTokens(const KvLayout& layout, uint32_t step_tokens,
                             uint64_t num_blocks) const {
  const auto fits = [&](uint64_t most) {
    KvDemand demand = *this;
    demand.tokens = static_cast<uint32_t>(most);
    return demand.blocks(layout, step_tokens) <= num_blocks;
  };
  if (!fits(prompt_tokens)) return 0;
  uint64_t low = prompt_tokens, high = (uint64_t{1} << 31) - 1;
  while (low < high) {
    const uint64_t middle = low + (high - low + 1) / 2;
    if (fits(middle)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

Reservation& Reservation::operator=(Reservation&& other) noexcept {
  if (this != &other) {
    Release();
    state_ = std::move(other.state_);
  }
  return *this;
}

Status Reservation::Grow(uint32_t tokens, uint32_t sequences) {
  KV_CHECK(state_ != nullptr);
  const KvCache::Most most = state_->cache->MostOf(tokens);
  const uint32_t full = std::max(most.full_blocks, state_->full_blocks);
  const uint32_t windows = std::max(most.window_blocks, state_->window_blocks);
  const uint64_t more = full - state_->full_blocks + (windows - state_->window_blocks);
  KV_TRY(state_->cache->Promise(*state_, more * sequences));
  state_->full_blocks = full;
  state_->window_blocks = windows;
  return {};
}

void Reservation::Shrink(uint32_t num_blocks) {
  KV_CHECK(num_blocks <= blocks());
  if (state_) state_->cache->TakeBack(*state_, num_blocks);
}

void Reservation::Release() {
  if (!state_) return;
  state_->cache->TakeBack(*state_, state_->blocks);
  state_->released = true;
  state_.reset();
}

Result<Reservation> KvCache::Reserve(MatchResult& match, const KvDemand& demand) {
  KV_CHECK(demand.prompt_tokens == match.prompt_tokens_ && demand.n > 0);
  KV_CHECK(demand.tokens >= demand.prompt_tokens);
  KV_CHECK(demand.source_tokens == match.source_tokens_);
  KV_CHECK(demand.shares_prompt || !match.shares_);
  const uint32_t block_tokens = layout().block_tokens();
  const uint32_t num_full = layout().num_full_groups();
  accounts_.ApplyGuarantees();
  const uint32_t available = accounts_.available(match.account_);
  const uint64_t wanted = Wanted(match, demand);
  const uint32_t partial = match.num_reused() % block_tokens;
  if (partial != 0 && match.place_.is_current() && wanted > available &&
      wanted <= available + uint64_t{num_full}) {
    // The partly used tokens are computed again, in the block that the copy would have taken.
    Shorten(match, match.num_reused() - partial);
    match.miss = Miss{MissReason::kPoolFull, match.num_reused(), std::nullopt};
  }
  const Most most = MostOf(demand.tokens);
  Reservation reservation;
  reservation.state_ = std::make_shared<Reservation::State>(
      Reservation::State{.cache = this,
                         .account = match.account_,
                         .blocks = 0,
                         .full_blocks = most.full_blocks,
                         .window_blocks = most.window_blocks,
                         .shares_prompt = demand.shares_prompt});
  KV_TRY(Promise(*reservation.state_, Wanted(match, demand)));
  return reservation;
}

// Blocks that the demand needs beyond those that the match pins.
uint64_t KvCache::Wanted(const MatchResult& match, const KvDemand& demand) const {
  uint64_t blocks = demand.blocks(layout(), options_.step_tokens);
  // A tail that is used in part is copied before it is written.
  if (match.num_reused() % layout().block_tokens() != 0) blocks += layout().num_full_groups();
  for (const BlockTable& table : match.tables_) blocks -= table.num_held();
  return blocks;
}

bool KvCache::IsGuaranteed(const MatchResult& match, const KvDemand& demand) const {
  const KvAccounts::Account& account = accounts_.of(match.account_);
  return account.used() + Wanted(match, demand) <= account.quota.guaranteed;
}

KvCache::Most KvCache::MostOf(uint32_t tokens) const {
  Most most{0, 0};
  for (const KvKind& kind : layout().own_kinds()) {
    const uint64_t blocks = layout().SequenceBlocks(kind, tokens, options_.step_tokens);
    (kind.reach.window > 0 ? most.window_blocks : most.full_blocks) +=
        static_cast<uint32_t>(blocks);
  }
  return most;
}

// Cuts the match to num_tokens tokens, which fill whole blocks, or to none when it does not hold
// the window before their end.
void KvCache::Shorten(MatchResult& match, uint32_t num_tokens) const {
  for (const KvKind& kind : layout().own_kinds()) {
    const uint64_t needed = WindowBegin(num_tokens, kind.reach.window) / layout().block_tokens();
    if (match.tables_[kind.first_group].first() > needed) num_tokens = 0;
  }
  for (BlockTable& table : std::span(match.tables_).first(layout().num_own_groups())) {
    while (table.size() > num_tokens / layout().block_tokens()) table.PopBack();
  }
  NodeId node = match.place_.node();
  const uint32_t depth = match.source_nodes_ + num_tokens / layout().block_tokens();
  while (index_->depth(node) > depth) node = index_->parent(node);
  match.place_.MoveTo(node);
  match.tokens_.resize(num_tokens);
  match.num_pool_ = num_tokens;
  match.num_partial_ = 0;
  match.has_cursor_ = false;
}

Status KvCache::Promise(Reservation::State& state, uint64_t num_blocks) {
  if (num_blocks > accounts_.available(state.account)) {
    if (num_blocks <= accounts_.unreserved(state.account)) {
      return FailCause(
          Code::kExhausted, Cause::kKvMax,
          "kv_max: {} blocks to reserve, but only {} are left of the {} that the owner may have",
          num_blocks, accounts_.available(state.account), accounts_.of(state.account).quota.max);
    }
    return Fail(Code::kExhausted,
                "KV pool: {} blocks to reserve, but only {} of {} are neither in use nor "
                "reserved",
                num_blocks, accounts_.available(state.account), plan_.num_blocks);
  }
  state.blocks += static_cast<uint32_t>(num_blocks);
  accounts_.Reserve(state.account, static_cast<uint32_t>(num_blocks));
  return {};
}

void KvCache::TakeBack(Reservation::State& state, uint32_t num_blocks) {
  KV_CHECK(num_blocks <= state.blocks);
  state.blocks -= num_blocks;
  accounts_.Release(state.account, num_blocks);
}

Reservation::State* KvCache::ReservedFor(const KvSequence& sequence) {
  Reservation::State* state = sequence.reserved_.get();
  return state == nullptr || state->released || sequence.closed_ ? nullptr : state;
}

bool KvCache::CopiesTail(const KvSequence& sequence, uint32_t group) const {
  const uint32_t block_tokens = layout().block_tokens();
  if (sequence.num_tokens() % block_tokens == 0) return false;
  const BlockId tail = sequence.tables_[group].ref(sequence.num_tokens() / block_tokens).id();
  return pool_->retained(tail) || pool_->pin_count(tail) > 1;
}

uint32_t KvCache::NumCopied(const KvSequence& sequence) const {
  const uint32_t num_full = layout().num_full_groups();
  return num_full > 0 && CopiesTail(sequence, 0) ? num_full : 0;
}

uint32_t KvCache::NumWindowBlocks(const KvSequence& sequence) const {
  size_t blocks = 0;
  for (uint32_t group = layout().num_full_groups(); group < layout().num_own_groups(); ++group) {
    blocks += sequence.tables_[group].num_held();
  }
  return static_cast<uint32_t>(blocks);
}

void KvCache::Draw(KvSequence& sequence, uint64_t num_blocks) {
  if (Reservation::State* state = ReservedFor(sequence)) {
    TakeBack(*state, static_cast<uint32_t>(std::min<uint64_t>(num_blocks, state->blocks)));
  }
}

// The sequence gave back blocks, and so needs num_blocks more to reach its largest length. Reserves
// as many of them as are unreserved, and counts the others in unbacked_: ReleaseRest must not
// release blocks for those.
void KvCache::GiveBack(KvSequence& sequence, uint64_t num_blocks) {
  Reservation::State* state = ReservedFor(sequence);
  if (state == nullptr) return;
  const auto again =
      static_cast<uint32_t>(std::min<uint64_t>(num_blocks, accounts_.available(state->account)));
  state->blocks += again;
  accounts_.Reserve(state->account, again);
  sequence.unbacked_ += static_cast<uint32_t>(num_blocks) - again;
}

// Blocks that it may still take.
uint64_t KvCache::RestOf(const KvSequence& sequence, const Reservation::State& state) const {
  const auto beyond = [](uint64_t most, uint64_t held) { return most - std::min(most, held); };
  const uint32_t num_full = layout().num_full_groups();
  uint64_t rest = beyond(state.full_blocks, sequence.table().size() * num_full) +
                  beyond(state.window_blocks, NumWindowBlocks(sequence));
  if (state.shares_prompt) rest += NumCopied(sequence);
  if (!HoldsSource(sequence)) rest += layout().SourceBlocks(sequence.source_tokens_);
  return rest - std::min<uint64_t>(rest, sequence.unbacked_);
}

void KvCache::ReleaseRest(KvSequence& sequence) {
  Reservation::State* state = ReservedFor(sequence);
  if (state == nullptr) return;
  const uint64_t rest = RestOf(sequence, *state);
  TakeBack(*state, static_cast<uint32_t>(std::min<uint64_t>(rest, state->blocks)));
}

}  // namespace kvasir
