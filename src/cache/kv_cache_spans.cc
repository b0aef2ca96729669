// KvCache: sequences of which some tokens lie in other sequences.
#include <algorithm>

#include "base/bytes.h"
#include "base/check.h"
#include "base/result.h"
#include "cache/kv_cache.h"

namespace kvasir {

Result<Reservation> KvCache::ReserveAfter(AccountId account, uint32_t head_tokens,
                                          uint32_t tokens) {
  KV_CHECK(head_tokens < tokens);
  const uint64_t blocks =
      CeilDiv(tokens, layout().block_tokens()) - head_tokens / layout().block_tokens() + 1;
  return reserves_.Reserve(account, {.prompt_tokens = tokens, .tokens = tokens},
                           layout().num_full_groups() * blocks);
}

KvSequence KvCache::Branch(const KvSequence& sequence, uint32_t num_tokens, uint32_t reserve_tokens,
                           const Reservation& reservation) {
  KV_CHECK(num_tokens <= sequence.num_committed_ && !layout().has_windows());
  KvSequence branch = Fork(sequence, reserve_tokens);
  branch.reserved_.reset();  // the fork's: it gives nothing back to that
  KV_CHECK(Truncate(branch, num_tokens));
  branch.reserved_ = reservation.state_;
  branch.has_copy_ = false;  // its tail is another sequence's: it is copied in any case
  return branch;
}

Status KvCache::ReadIn(KvSequence& sequence, const KvSequence& other,
                       std::span<const TokenId> tokens, uint32_t shift) {
  KV_CHECK(!sequence.publishes() && sequence.num_tokens() == sequence.num_committed_);
  const uint32_t block_tokens = layout().block_tokens(), num_full = layout().num_full_groups();
  const uint64_t end = sequence.num_tokens() + tokens.size();
  KV_CHECK(end <= uint64_t{other.num_committed_} + shift);
  const size_t whole = end / block_tokens;
  // The next token goes into a block of which only the rest is this sequence's.
  const bool begins_block =
      end % block_tokens != 0 && std::max(sequence.table().size(), whole) == whole;
  if (begins_block && reserves_.available(sequence) < num_full) {
    return Fail(Code::kExhausted,
                "KV pool: {} blocks needed, {} of {} are free or idle and not "
                "reserved for others",
                num_full, reserves_.available(sequence), plan_.num_blocks);
  }
  for (uint32_t group = 0; group < num_full; ++group) {
    BlockTable& table = sequence.tables_[group];
    while (table.size() < whole) {
      const size_t lies_in = (table.size() * block_tokens - shift) / block_tokens;
      table.Append(other.tables_[group].ref(lies_in).Share());
    }
  }
  if (begins_block) {
    reserves_.Draw(sequence, num_full);
    for (uint32_t group = 0; group < num_full; ++group) {
      BlockRef block = Take(sequence, group);
      uses_.SetLive(block.id(), static_cast<uint32_t>(end % block_tokens));
      sequence.tables_[group].Append(std::move(block));
    }
  }
  sequence.tokens_.insert(sequence.tokens_.end(), tokens.begin(), tokens.end());
  sequence.num_committed_ = static_cast<uint32_t>(end);
  return {};
}

}  // namespace kvasir
