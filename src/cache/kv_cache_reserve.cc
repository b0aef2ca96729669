// Reservations of KvCache: how many blocks are promised, and to whom.
#include <algorithm>

#include "base/bytes.h"
#include "base/check.h"
#include "base/result.h"
#include "cache/kv_cache.h"

namespace kvasir {

uint64_t KvDemand::blocks(uint32_t block_tokens) const {
  const uint64_t shared = shares_prompt ? prompt_tokens / block_tokens : 0;
  return shared + n * (CeilDiv(tokens, block_tokens) - shared);
}

uint64_t KvDemand::MaxTokens(uint32_t block_tokens, uint64_t num_blocks) const {
  const uint64_t shared = shares_prompt ? prompt_tokens / block_tokens : 0;
  if (shared > num_blocks) return 0;
  const uint64_t most = (shared + (num_blocks - shared) / n) * block_tokens;
  return most >= prompt_tokens ? most : 0;
}

Reservation& Reservation::operator=(Reservation&& other) noexcept {
  if (this != &other) {
    Release();
    state_ = std::move(other.state_);
  }
  return *this;
}

Status Reservation::Grow(uint32_t num_blocks) {
  KV_CHECK(state_ != nullptr);
  return state_->cache->Promise(*state_, num_blocks);
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
  KV_CHECK(demand.shares_prompt || !match.shares_);
  const uint32_t block_tokens = layout().block_tokens();
  const auto wanted = [&] {
    // A tail that is used in part is copied before it is written.
    const uint32_t copy = match.num_reused() % block_tokens != 0 ? 1 : 0;
    return demand.blocks(block_tokens) + copy - match.table_.size();
  };
  if (wanted() == unreserved_blocks() + uint64_t{1} && match.num_reused() % block_tokens != 0) {
    DropPartial(match);  // its tokens are computed into the block that the copy would have taken
  }
  Reservation reservation;
  reservation.state_ = std::make_shared<Reservation::State>(Reservation::State{
      .cache = this,
      .blocks = 0,
      .sequence_blocks = static_cast<uint32_t>(CeilDiv(demand.tokens, block_tokens)),
      .shares_prompt = demand.shares_prompt});
  KV_TRY(Promise(*reservation.state_, wanted()));
  return reservation;
}

void KvCache::DropPartial(MatchResult& match) {
  const uint32_t partial = match.num_reused() % layout().block_tokens();
  const uint32_t whole = match.num_reused() - partial;
  match.table_.PopBack();
  match.tokens_.resize(whole);
  match.num_pool_ = whole;
  match.num_partial_ = 0;
  match.has_cursor_ = false;
}

Status KvCache::Promise(Reservation::State& state, uint64_t num_blocks) {
  if (num_blocks > unreserved_blocks()) {
    return Fail(Code::kExhausted,
                "KV pool: {} blocks to reserve, but only {} of {} are neither in use nor "
                "reserved",
                num_blocks, unreserved_blocks(), plan_.num_blocks);
  }
  state.blocks += static_cast<uint32_t>(num_blocks);
  reserved_blocks_ += static_cast<uint32_t>(num_blocks);
  return {};
}

void KvCache::TakeBack(Reservation::State& state, uint32_t num_blocks) {
  KV_CHECK(num_blocks <= state.blocks && num_blocks <= reserved_blocks_);
  state.blocks -= num_blocks;
  reserved_blocks_ -= num_blocks;
}

Reservation::State* KvCache::ReservedFor(const KvSequence& sequence) {
  Reservation::State* state = sequence.reserved_.get();
  return state == nullptr || state->released || sequence.closed_ ? nullptr : state;
}

bool KvCache::CopiesTail(const KvSequence& sequence) const {
  const uint32_t block_tokens = layout().block_tokens();
  if (sequence.num_tokens() % block_tokens == 0) return false;
  const BlockId tail = sequence.table_.ref(sequence.num_tokens() / block_tokens).id();
  return pool_->retained(tail) || pool_->pin_count(tail) > 1;
}

void KvCache::Draw(KvSequence& sequence, uint64_t num_blocks) {
  if (Reservation::State* state = ReservedFor(sequence)) {
    TakeBack(*state, static_cast<uint32_t>(std::min<uint64_t>(num_blocks, state->blocks)));
  }
}

// The sequence let go of blocks, of which `num_freed` are nobody else's, and needs num_lost more to
// be as long as it may get. Those that cannot be reserved again it is not owed any more.
void KvCache::GiveBack(KvSequence& sequence, uint32_t num_lost, uint32_t num_freed) {
  Reservation::State* state = ReservedFor(sequence);
  if (state == nullptr) return;
  if (!state->shares_prompt) num_lost = num_freed;  // the shared ones are reserved already
  const uint32_t again = std::min(num_lost, unreserved_blocks());
  state->blocks += again;
  reserved_blocks_ += again;
  sequence.unbacked_ += num_lost - again;
}

void KvCache::ReleaseRest(KvSequence& sequence) {
  Reservation::State* state = ReservedFor(sequence);
  if (state == nullptr) return;
  const uint32_t held = static_cast<uint32_t>(sequence.table_.size());
  uint32_t rest = state->sequence_blocks - std::min(held, state->sequence_blocks);
  if (state->shares_prompt && CopiesTail(sequence)) ++rest;
  rest -= std::min(rest, sequence.unbacked_);
  TakeBack(*state, std::min(rest, state->blocks));
}

void KvSequence::Close() {
  if (reserved_ != nullptr) reserved_->cache->ReleaseRest(*this);
  closed_ = true;
}

KvSequence& KvSequence::operator=(KvSequence&& other) noexcept {
  if (this == &other) return *this;
  Close();
  namespace_ = other.namespace_;
  epoch_ = other.epoch_;
  shares_ = other.shares_;
  node_ = other.node_;
  num_committed_ = std::exchange(other.num_committed_, 0);
  closed_ = other.closed_;
  unbacked_ = other.unbacked_;
  reserved_ = std::move(other.reserved_);
  tokens_ = std::move(other.tokens_);
  table_ = std::move(other.table_);
  return *this;
}

}  // namespace kvasir
