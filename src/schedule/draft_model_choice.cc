// What is drafted by a DraftModel, and how far: what pays.
#include <algorithm>
#include <utility>

#include "schedule/draft_model_slot.h"

namespace kvasir {
namespace {

// After so many tokens of an answer it is asked again whether reading the prompt pays.
constexpr uint32_t kAskAgainTokens = 64;
// Before its steps were measured: a further row costs such a part of a step of one row.
constexpr double kUnknownRowShare = 0.25;

}  // namespace

bool DraftModel::CanRead(std::span<const TokenId> tokens) const {
  const uint32_t vocab_size = runner_.config().vocab_size;
  return std::ranges::all_of(tokens,
                             [&](TokenId id) { return static_cast<uint32_t>(id) < vocab_size; });
}

// Finds the sequences that want a draft, and brings their slots up to what is known.
void DraftModel::FindWishes(std::span<const std::unique_ptr<Request>> running,
                            const StepCost& cost) {
  wishes_.clear();
  for (const auto& request : running) {
    if (request->done() || !request->answer.prompt_done || request->room.is_starved) continue;
    if (request->is_erased) continue;  // what was dropped of it is not read again
    for (const auto& sequence : request->answer.sequences) {
      Draft& draft = sequence->draft;
      if (sequence->done || sequence->num_pending() != 1 || sequence->waits_for_format()) continue;
      const std::vector<TokenId>& known = sequence->tokens;
      const uint32_t most = drafter_.MostTokens(*request, *sequence);
      if (most == 0) continue;
      Slot& slot = SlotOf(*request, *sequence);
      if (known.size() + most > parts_.ctx_size) {
        slot.DropKv();
        continue;
      }
      slot.request = request.get();
      slot.sequence = sequence.get();
      slot.other_saved_ns = 0;
      if (draft.num_tokens > 0 && !Outdoes(slot, most, cost)) continue;
      slot.most = most;
      slot.unreadable = slot.unreadable || !CanRead(std::span(known).subspan(slot.num_known));
      if (slot.unreadable) {
        slot.DropKv();
        continue;
      }
      if (slot.has_kv) Accept(slot, known, cache_);
      std::vector<TokenId>& tokens = slot.shadow.tokens;
      if (tokens.capacity() < known.capacity() + kMaxDraft) {
        tokens.reserve(known.capacity() + kMaxDraft);
      }
      tokens.resize(slot.num_known);
      tokens.insert(tokens.end(), known.begin() + slot.num_known, known.end());
      slot.num_known = static_cast<uint32_t>(known.size());
      slot.chance = drafter_.ModelChance(*request);
      slot.other = std::exchange(draft, Draft{.source = DraftSource::kModel});
      wishes_.push_back(&slot);
    }
  }
}

// Tells whether the model's draft is expected to give more tokens a second than the one that the
// sequence has, which took no time; notes what that one saves. Uses the slot's fields for it.
bool DraftModel::Outdoes(Slot& slot, uint32_t most, const StepCost& cost) const {
  if (options_.speculate == Speculate::kAlways) return false;
  const Draft& draft = slot.sequence->draft;
  const Slot* const slots[] = {&slot};
  slot.most = draft.num_tokens;
  slot.chance = drafter_.Chance(*slot.request, *slot.sequence);
  const Pace other = PaceOf(slots, cost, /*draft_ns=*/0);
  slot.other_saved_ns = other.saved_ns;
  slot.most = most;
  slot.chance = drafter_.ModelChance(*slot.request);
  return PaceOf(slots, cost).rate > other.rate;
}

// Tells whether reading so many tokens takes less time than drafts are expected to save in the rest
// of the answer. `together`: the pace of all sequences that wish for drafts. Drafts save nothing if
// they do not pay for all of these together, whose rows fill the step, and for this one alone.
bool DraftModel::ReadingPays(const Slot& slot, const Pace& together, uint32_t unread,
                             const StepCost& cost) const {
  const Slot* const slots[] = {&slot};
  if (together.longest == 0 || PaceOf(slots, cost).longest == 0) return false;
  const Request& request = *slot.request;
  const uint32_t so_far = request.answer.longest;
  const uint32_t expected = tenants_.lengths().ExpectedOfTenant(request.tenant, so_far);
  const double left = std::min(expected, request.max_tokens) - std::min(so_far, expected);
  double read_ns = 0;
  if (const uint32_t rows = std::min(unread, parts_.max_rows); rows > 0) {
    read_ns = times_.cost.knows_anything()
                  ? times_.cost.PredictNs({.prefill_rows = rows}) * unread / rows
                  : StepNs(unread, cost);
  }
  return left * (together.saved_ns - slot.other_saved_ns) > read_ns;
}

// Gives the sequence the draft that it had before, where the model has none.
void DraftModel::GiveBack(Slot& slot) {
  if (slot.other.num_tokens == 0) return;
  Draft& draft = slot.sequence->draft;
  if (draft.num_tokens == 0) {
    draft = slot.other;
  } else {
    drafter_.CountUntried(*slot.request, slot.other);
  }
  slot.other = {};
}

// Returns how long a step of the draft model takes.
double DraftModel::StepNs(uint32_t rows, const StepCost& cost) const {
  if (times_.has_drafted) return times_.cost.PredictNs({.decode_rows = rows});
  // As much less than the other model's as its weights are.
  const auto weights = static_cast<double>(runner_.weights_bytes());
  const double share = weights > 0 && weights_bytes_ > 0
                           ? weights / static_cast<double>(weights_bytes_)
                           : kUnknownRowShare;
  return share * cost.PredictNs({.decode_rows = 1}) * (1 + (rows - 1) * kUnknownRowShare);
}

DraftModel::Pace DraftModel::PaceOf(std::span<const Slot* const> slots,
                                    const StepCost& cost) const {
  return PaceOf(slots, cost, StepNs(static_cast<uint32_t>(slots.size()), cost));
}

// Finds the length of drafts, of these slots together, that gives most tokens a second, where the
// next token of each takes draft_ns.
DraftModel::Pace DraftModel::PaceOf(std::span<const Slot* const> slots, const StepCost& cost,
                                    double draft_ns) const {
  Pace pace;
  const auto rows = static_cast<uint32_t>(slots.size());
  const double plain_ns = cost.PredictNs({.decode_rows = rows});
  const auto limit_ns = static_cast<double>(options_.target_step_ns);
  double tokens = rows;
  pace.rate = rows / plain_ns;
  uint32_t drafted = 0;
  for (uint32_t length = 1; length <= kMaxDraft; ++length) {
    uint32_t more = 0;
    for (const Slot* slot : slots) {
      if (slot->most < length) continue;
      ++more;
      double right = slot->chance;
      for (uint32_t i = 1; i < length; ++i) right *= slot->chance;
      tokens += right;
    }
    if (more == 0) break;
    drafted += more;
    const double ns =
        cost.PredictNs({.decode_rows = rows, .draft_rows = drafted}) + length * draft_ns;
    if (limit_ns > 0 && ns > limit_ns) break;
    if (tokens / ns <= pace.rate) continue;
    pace.rate = tokens / ns;
    pace.longest = length;
    pace.saved_ns = (plain_ns - ns * rows / tokens) / rows;
  }
  return pace;
}

// Looks for the sequence's beginning in the cache, and decides whether to read the rest.
bool DraftModel::Begin(Slot& slot, const Pace& together, const StepCost& cost) {
  Request& request = *slot.request;
  const GenerateRequest& spec = request.spec;
  const bool always = options_.speculate == Speculate::kAlways;
  const uint32_t so_far = request.answer.longest;
  if (so_far < slot.ask_at) return false;
  const uint32_t asked_at = slot.ask_at - std::min(slot.ask_at, kAskAgainTokens);
  slot.ask_at = so_far + kAskAgainTokens;
  if (!always && !ReadingPays(slot, together, 0, cost)) {
    drafter_.CountUntried(request, {.source = DraftSource::kModel}, so_far - asked_at);
    return false;
  }
  const std::string& owner = request.cache_owner();
  MatchOptions options{.reuse = request.shares(), .use_cursor = false, .use_tier = false};
  options.account = cache_.EnterAccount(owner);
  MatchResult match = cache_.Match(cache_.EnterNamespace(owner, parts_.identity, spec.cache_salt),
                                   slot.sequence->tokens, options);
  const uint32_t unread = slot.num_known - match.num_reused();
  if (!always && !ReadingPays(slot, together, unread, cost)) return false;
  const uint32_t reserve = std::min(request.prompt_tokens() + request.max_tokens, parts_.ctx_size);
  slot.kv = cache_.Fetch(std::move(match), reserve + kMaxDraft);
  slot.has_kv = true;
  return true;
}

}  // namespace kvasir
