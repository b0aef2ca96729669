#include "cache/kv_reserves.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "base/check.h"
#include "base/result.h"

namespace kvasir {

Result<Reservation> KvReserves::Reserve(AccountId account, const KvDemand& demand,
                                        uint64_t num_blocks) {
  const Most most = MostOf(demand.tokens, demand.most_full_tokens);
  Reservation reservation;
  reservation.state_ = std::make_shared<Reservation::State>(
      Reservation::State{.reserves = this,
                         .account = account,
                         .blocks = 0,
                         .full_blocks = most.full_blocks,
                         .window_blocks = most.window_blocks,
                         .most_full_tokens = demand.most_full_tokens,
                         .shares_prompt = demand.shares_prompt});
  KV_TRY(Promise(*reservation.state_, num_blocks));
  return reservation;
}

KvReserves::Most KvReserves::MostOf(uint32_t tokens, uint32_t most_full_tokens) const {
  Most most{0, 0};
  for (const KvKind& kind : layout_.own_kinds()) {
    const bool drops =
        kind.reach.window == 0 && most_full_tokens != std::numeric_limits<uint32_t>::max();
    const uint64_t blocks =
        drops ? layout_.SequenceBlocks(kind, std::min(tokens, most_full_tokens), step_tokens_) +
                    kind.num_groups
              : layout_.SequenceBlocks(kind, tokens, step_tokens_);
    (kind.reach.window > 0 ? most.window_blocks : most.full_blocks) +=
        static_cast<uint32_t>(blocks);
  }
  return most;
}

Status KvReserves::Promise(Reservation::State& state, uint64_t num_blocks) {
  const uint32_t available = accounts_.available(state.account);
  if (num_blocks > available) {
    if (num_blocks <= accounts_.unreserved(state.account)) {
      return FailCause(
          Code::kExhausted, Cause::kKvMax,
          "kv_max: {} blocks to reserve, but only {} are left of the {} that the owner may have",
          num_blocks, available, accounts_.of(state.account).quota.max);
    }
    return Fail(Code::kExhausted,
                "KV pool: {} blocks to reserve, but only {} of {} are neither in use nor "
                "reserved",
                num_blocks, available, pool_.num_blocks());
  }
  state.blocks += static_cast<uint32_t>(num_blocks);
  accounts_.Reserve(state.account, static_cast<uint32_t>(num_blocks));
  return {};
}

void KvReserves::TakeBack(Reservation::State& state, uint32_t num_blocks) {
  KV_CHECK(num_blocks <= state.blocks);
  state.blocks -= num_blocks;
  accounts_.Release(state.account, num_blocks);
}

void KvReserves::EndLoan(Reservation::State& state) {
  state.blocks += state.lent;
  accounts_.Reserve(state.account, std::exchange(state.lent, 0));
}

Status KvReserves::Grow(Reservation::State& state, uint32_t tokens, uint32_t sequences) {
  const Most most = MostOf(tokens, state.most_full_tokens);
  const uint32_t full = std::max(most.full_blocks, state.full_blocks);
  const uint32_t windows = std::max(most.window_blocks, state.window_blocks);
  const uint64_t more = full - state.full_blocks + (windows - state.window_blocks);
  KV_TRY(Promise(state, more * sequences));
  state.full_blocks = full;
  state.window_blocks = windows;
  return {};
}

Reservation::State* KvReserves::Of(const KvSequence& sequence) {
  Reservation::State* state = sequence.reserved_.get();
  return state == nullptr || state->released || sequence.closed_ ? nullptr : state;
}

uint32_t KvReserves::available(const KvSequence& sequence) const {
  const Reservation::State* state = Of(sequence);
  return accounts_.available(sequence.account_) + (state != nullptr ? state->blocks : 0);
}

void KvReserves::Draw(KvSequence& sequence, uint64_t num_blocks) {
  if (Reservation::State* state = Of(sequence)) {
    TakeBack(*state, static_cast<uint32_t>(std::min<uint64_t>(num_blocks, state->blocks)));
  }
}

void KvReserves::GiveBack(KvSequence& sequence, uint64_t num_blocks) {
  Reservation::State* state = Of(sequence);
  if (state == nullptr) return;
  const auto again =
      static_cast<uint32_t>(std::min<uint64_t>(num_blocks, accounts_.available(state->account)));
  state->blocks += again;
  accounts_.Reserve(state->account, again);
  sequence.unbacked_ += static_cast<uint32_t>(num_blocks) - again;
}

void KvReserves::DropCopy(KvSequence& sequence) {
  Reservation::State* state = Of(sequence);
  if (!std::exchange(sequence.has_copy_, false) || state == nullptr) return;
  const uint32_t num_full = layout_.num_full_groups();
  const uint32_t unbacked = std::min(num_full, sequence.unbacked_);
  sequence.unbacked_ -= unbacked;
  TakeBack(*state, std::min(num_full - unbacked, state->blocks));
}

// Returns the blocks that it may still take.
uint64_t KvReserves::RestOf(const KvSequence& sequence, const Reservation::State& state) const {
  const auto beyond = [](uint64_t most, uint64_t held) { return most - std::min(most, held); };
  uint64_t rest = beyond(MostFull(sequence, state), NumFullBlocks(sequence)) +
                  beyond(state.window_blocks, NumWindowBlocks(sequence));
  if (state.shares_prompt) rest += NumCopied(sequence);
  if (!sequence.HoldsSource()) rest += layout_.SourceBlocks(sequence.source_.tokens);
  return rest - std::min<uint64_t>(rest, sequence.unbacked_);
}

uint64_t KvReserves::MostFull(const KvSequence& sequence, const Reservation::State& state) {
  return std::min(state.full_blocks, sequence.most_full_blocks_);
}

void KvReserves::Settle(KvSequence& sequence, uint32_t sequences) {
  Reservation::State* state = Of(sequence);
  if (state == nullptr) return;
  const uint64_t of_others = MostFull(sequence, *state) + state->window_blocks;
  const uint64_t needed = RestOf(sequence, *state) + (sequences - 1) * of_others;
  if (needed > state->blocks) return GiveBack(sequence, needed - state->blocks);
  TakeBack(*state, state->blocks - static_cast<uint32_t>(needed));
}

void KvReserves::ReleaseRest(KvSequence& sequence) {
  Reservation::State* state = Of(sequence);
  if (state == nullptr) return;
  if (NumCopied(sequence) == 0) DropCopy(sequence);
  const uint64_t rest = RestOf(sequence, *state);
  TakeBack(*state, static_cast<uint32_t>(std::min<uint64_t>(rest, state->blocks)));
}

bool KvReserves::CopiesTail(const KvSequence& sequence, uint32_t group) const {
  const uint32_t block_tokens = layout_.block_tokens();
  if (sequence.num_tokens() % block_tokens == 0) return false;
  const BlockId tail = sequence.tables_[group].ref(sequence.num_tokens() / block_tokens).id();
  return pool_.retained(tail) || pool_.pin_count(tail) > 1;
}

uint32_t KvReserves::NumCopied(const KvSequence& sequence) const {
  const uint32_t num_full = layout_.num_full_groups();
  return num_full > 0 && CopiesTail(sequence, 0) ? num_full : 0;
}

uint32_t KvReserves::NumFullBlocks(const KvSequence& sequence) const {
  const size_t twice = std::ranges::count_if(
      sequence.kept_blocks_, [&](uint32_t block) { return block >= sequence.table().first(); });
  const size_t blocks = sequence.table().num_held() + sequence.kept_blocks_.size() - twice;
  return static_cast<uint32_t>(blocks) * layout_.num_full_groups();
}

uint32_t KvReserves::NumWindowBlocks(const KvSequence& sequence) const {
  size_t blocks = 0;
  for (uint32_t group = layout_.num_full_groups(); group < layout_.num_own_groups(); ++group) {
    blocks += sequence.tables_[group].num_held();
  }
  return static_cast<uint32_t>(blocks);
}

}  // namespace kvasir
