#include "schedule/draft_model.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/random.h"
#include "base/wipe.h"
#include "schedule/draft_model_slot.h"

namespace kvasir {
namespace {

// After so many steps without a draft, what drafting took is measured anew.
constexpr uint32_t kForgetTimes = 512;
// The logit of a token that only the other vocabulary has: of weight 0, and finite.
constexpr float kNoToken = -1e30f;

// Returns the place of the request with that id, or the end.
auto RequestOf(std::span<const std::unique_ptr<Request>> running, RequestId id) {
  return std::ranges::find(running, id, [](const auto& request) { return request->id; });
}

}  // namespace

DraftModel::DraftModel(const DraftModelParts& parts, const SchedulerOptions& options,
                       const Runner& model, const Drafter& drafter, TokenChooser& chooser,
                       TenantBook& tenants, FormatSteps& format_steps)
    : runner_(*parts.runner),
      cache_(*parts.cache),
      parts_(parts),
      options_(options),
      vocab_size_(model.config().vocab_size),
      weights_bytes_(model.weights_bytes()),
      drafter_(drafter),
      chooser_(chooser),
      tenants_(tenants),
      format_steps_(format_steps) {
  KV_CHECK(parts_.max_rows >= options.parallel * kMostBehind);
  for (uint32_t i = 0; i < options.parallel; ++i) slots_.push_back(std::make_unique<Slot>());
  for (std::vector<Slot*>* list : {&wishes_, &in_step_}) list->reserve(options.parallel);
  sequences_.reserve(options.parallel);
  hidden_.reserve(options.parallel);
  tokens_.reserve(parts_.max_rows);
  logits_.resize(size_t{options.parallel} * std::max(runner_.config().vocab_size, vocab_size_));
}

DraftModel::~DraftModel() {
  for (const auto& slot : slots_) Release(*slot);
}

void DraftModel::Release(Slot& slot) {
  slot.DropKv();
  slot.shadow.format.reset();
  slot.shadow.format_choice.reset();
  Wipe(&slot.shadow.tokens);
  slot.id.reset();
  slot.other = {};
  slot.unreadable = false;
  slot.num_known = slot.ask_at = 0;
}

void DraftModel::DropOf(std::span<const std::unique_ptr<Request>> running,
                        const std::function<bool(const std::string&)>& is_owner) {
  for (const auto& slot : slots_) {
    if (!slot->id) continue;
    const auto request = RequestOf(running, *slot->id);
    if (request == running.end() || is_owner((*request)->cache_owner())) Release(*slot);
  }
}

void DraftModel::Zero() {
  runner_.ZeroScratch();
  std::ranges::fill(logits_, 0.0f);
  tokens_.resize(tokens_.capacity());
  Wipe(&tokens_);
}

// Commits the drafted tokens that were accepted and drops the others; `known`: of the sequence.
void DraftModel::Accept(Slot& slot, std::span<const TokenId> known, KvCache& cache) {
  KvSequence& kv = slot.kv;
  uint32_t right = kv.num_committed();
  // The last token's row is computed again: its logits are gone.
  const size_t end = std::min<size_t>(kv.num_tokens(), known.size() - 1);
  while (right < end && kv.tokens()[right] == known[right]) ++right;
  cache.Commit(kv, right - kv.num_committed(), KvCache::CommitKind::kRunning);
  KV_CHECK(cache.Truncate(kv, kv.num_committed()));
}

void DraftModel::Sweep(std::span<const std::unique_ptr<Request>> running) {
  for (const auto& slot : slots_) {
    if (!slot->id) continue;
    const auto request = RequestOf(running, *slot->id);
    const Sequence* sequence = nullptr;
    if (request != running.end()) {
      for (const auto& one : (*request)->answer.sequences) {
        if (one->choice == slot->choice) sequence = one.get();
      }
    }
    if (sequence != nullptr && !sequence->done) continue;
    if (sequence != nullptr && slot->has_kv && (*request)->shares()) {
      Accept(*slot, sequence->tokens, cache_);
      slot->kv.Close();
      cache_.Commit(slot->kv, 0, KvCache::CommitKind::kEnd);
    }
    Release(*slot);
  }
}

DraftModel::Slot& DraftModel::SlotOf(Request& request, Sequence& sequence) {
  Slot* free = nullptr;
  for (const auto& slot : slots_) {
    if (!slot->id) {
      free = slot.get();
    } else if (*slot->id == request.id && slot->choice == sequence.choice) {
      return *slot;
    }
  }
  KV_CHECK(free != nullptr);  // those that do not run were swept
  free->id = request.id;
  free->choice = sequence.choice;
  return *free;
}

void DraftModel::Fill(std::span<const std::unique_ptr<Request>> running, const StepCost& cost) {
  last_ns_ = 0;
  const bool always = options_.speculate == Speculate::kAlways;
  if (!always && !cost.knows_anything()) return;
  ForgetOldTimes();
  FindWishes(running, cost);
  if (!wishes_.empty()) {
    const Pace together = PaceOf(wishes_, cost);
    std::erase_if(wishes_,
                  [&](Slot* slot) { return !slot->has_kv && !Begin(*slot, together, cost); });
  }
  if (!wishes_.empty()) DraftWishes(cost);
  for (const auto& slot : slots_) GiveBack(*slot);
}

// Times that kept it from drafting for long may be those of a machine that was busy then.
void DraftModel::ForgetOldTimes() {
  if (++times_.since_drafted < kForgetTimes) return;
  times_ = {};
}

// Reads what is lacking, and drafts what is wished for.
void DraftModel::DraftWishes(const StepCost& cost) {
  const bool always = options_.speculate == Speculate::kAlways;
  std::erase_if(wishes_, [&](Slot* slot) {
    slot->sequence->draft.withheld = !drafter_.MayDraft(*slot->request);
    return slot->sequence->draft.withheld;
  });
  if (!always) {
    const Pace together = PaceOf(wishes_, cost);
    std::erase_if(wishes_, [&](Slot* slot) {
      Draft& draft = slot->sequence->draft;
      draft.withheld =
          slot->is_behind() &&
          !ReadingPays(*slot, together, slot->num_known - slot->kv.num_committed(), cost);
      return draft.withheld;
    });
  }
  ReadPrompts(cost);
  const uint64_t start_ns = MonotonicNs();
  std::erase_if(wishes_, [](Slot* slot) { return !slot->has_kv || slot->is_behind(); });
  uint32_t longest = always ? kMaxDraft : 0;
  if (longest == 0 && !wishes_.empty()) longest = PaceOf(wishes_, cost).longest;
  for (Slot* slot : wishes_) slot->sequence->draft.withheld = longest == 0;
  if (longest > 0) DraftTokens(longest);
  last_ns_ = MonotonicNs() - start_ns;
  for (const Slot* slot : wishes_) {
    tenants_.Charge(slot->request->tenant, static_cast<double>(last_ns_) / wishes_.size());
  }
}

// Reads what KV of sequences lacks, and charges their tenants for it.
void DraftModel::ReadPrompts(const StepCost& cost) {
  const uint64_t start_ns = MonotonicNs();
  for (Slot* slot : wishes_) slot->reads = slot->is_behind();
  const auto readers = std::ranges::count_if(wishes_, [](Slot* slot) { return slot->reads; });
  Read(cost);
  const auto ns = static_cast<double>(MonotonicNs() - start_ns);
  for (const Slot* slot : wishes_) {
    if (slot->reads) tenants_.Charge(slot->request->tenant, ns / readers);
  }
}

// Puts rows of a slot into the step, where its cache has room. Returns whether it has.
bool DraftModel::AddRows(Slot& slot, std::span<const TokenId> tokens) {
  const uint32_t position = slot.kv.num_tokens();
  if (!cache_.Extend(slot.kv, tokens)) return false;
  sequences_.push_back({.tables = slot.kv.tables(),
                        .position = position,
                        .first_row = static_cast<uint32_t>(tokens_.size()),
                        .num_rows = static_cast<uint32_t>(tokens.size())});
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  in_step_.push_back(&slot);
  return true;
}

// Runs the step and commits its rows of known tokens. Returns false where no sequence is in the
// step, or the step failed. Drops rows that are not finite; where the step only reads, all KV of
// their slot, since Read would read the same rows again.
bool DraftModel::RunRows(bool draws) {
  if (in_step_.empty()) return false;
  const uint64_t start_ns = MonotonicNs();
  const auto rows = static_cast<uint32_t>(tokens_.size());
  const Status status = runner_.Step(sequences_, tokens_);
  for (size_t i = 0; i < in_step_.size(); ++i) {
    Slot& slot = *in_step_[i];
    const StepSequence& sequence = sequences_[i];
    bool finite = status.has_value();
    for (uint32_t row = 0; finite && row < sequence.num_rows; ++row) {
      finite = runner_.finite(sequence.first_row + row);
    }
    slot.goes_on = finite;
    if (!finite) {
      if (!draws) slot.DropKv();
      if (draws) KV_CHECK(cache_.Truncate(slot.kv, slot.kv.num_committed()));
      continue;
    }
    // The row of the last known token is computed again if the sequence is left out of this step.
    const uint32_t known = std::min(slot.kv.num_tokens(), slot.num_known - 1);
    if (known > slot.kv.num_committed()) {
      cache_.Commit(slot.kv, known - slot.kv.num_committed(), KvCache::CommitKind::kRunning);
    }
  }
  if (status && draws) Draw();
  const StepWork work = draws ? StepWork{.decode_rows = rows} : StepWork{.prefill_rows = rows};
  times_.cost.Observe(work, MonotonicNs() - start_ns);
  if (draws) {
    times_.has_drafted = true;
    times_.since_drafted = 0;
  }
  return status.has_value();
}

// Reads what KV of sequences lacks, all except the last token: one step, or all of it.
void DraftModel::Read(const StepCost& cost) {
  const bool always = options_.speculate == Speculate::kAlways;
  do {
    ClearStep();
    const StepWork decodes{.decode_rows = static_cast<uint32_t>(wishes_.size())};
    const double spare_ns = static_cast<double>(options_.target_step_ns) - cost.PredictNs(decodes);
    uint32_t free = always || options_.target_step_ns == 0
                        ? parts_.max_rows
                        : RowsWithin(times_.cost, std::max(spare_ns, 1.0), {.decode_rows = 1},
                                     parts_.max_rows, 0);
    for (Slot* slot : wishes_) {
      if (!slot->is_behind() || free == 0) continue;
      const uint32_t begin = slot->kv.num_committed();
      const uint32_t rows = std::min(slot->num_known - 1 - begin, free);
      free -= rows;
      if (!AddRows(*slot, std::span(slot->shadow.tokens).subspan(begin, rows))) slot->DropKv();
    }
  } while (RunRows(false) && always);
}

// Drafts up to so many tokens of each wish, one a step.
void DraftModel::DraftTokens(uint32_t longest) {
  format_steps_.ShareWithDrafts(tenants_);
  for (Slot* slot : wishes_) {
    slot->goes_on = true;
    const Sequence& sequence = *slot->sequence;
    slot->shadow.choice = sequence.choice;
    slot->shadow.format = sequence.format;
    slot->shadow.format_end = sequence.format_end;
    slot->shadow.check = {.num_drafted = longest};
  }
  for (uint32_t length = 1; length <= longest; ++length) {
    ClearStep();
    for (Slot* slot : wishes_) {
      if (!slot->goes_on || slot->most < length) continue;
      const std::span<const TokenId> known = slot->shadow.tokens;
      slot->goes_on = AddRows(*slot, known.subspan(slot->kv.num_tokens()));
    }
    if (!RunRows(true)) break;
  }
}

// Draws the next token of each sequence of the step.
void DraftModel::Draw() {
  hidden_.clear();
  for (const StepSequence& sequence : sequences_) {
    hidden_.push_back(runner_.hidden(sequence.first_row + sequence.num_rows - 1).data());
  }
  runner_.Logits(hidden_, logits_.data());
  const uint32_t own = runner_.config().vocab_size;
  const uint32_t stride = std::max(own, vocab_size_);
  if (own < vocab_size_) {  // makes the rows as long as the other model's, from the last one on
    for (size_t i = hidden_.size(); i-- > 0;) {
      float* const row = logits_.data() + i * stride;
      std::memmove(row, logits_.data() + i * own, own * sizeof(float));
      std::fill(row + own, row + stride, kNoToken);
    }
  }
  chooser_.Clear();
  for (size_t i = 0; i < in_step_.size(); ++i) {
    Slot& slot = *in_step_[i];
    if (!slot.goes_on) continue;
    chooser_.Add(*slot.request, slot.shadow, hidden_[i],
                 std::span<const float>(logits_).subspan(i * stride, vocab_size_), true);
  }
  chooser_.Run(format_steps_.of_rows());
  for (TokenChooser::Draw& draw : chooser_.draws()) UseDrawn(draw);
}

void DraftModel::UseDrawn(TokenChooser::Draw& draw) {
  Slot& slot = **std::ranges::find(in_step_, draw.sequence, [](Slot* one) { return &one->shadow; });
  Sequence& shadow = slot.shadow;
  shadow.check.format_steps += draw.steps.taken();
  format_steps_.Take(draw.steps.taken());
  std::optional<TokenId> id = draw.id;
  if (draw.waits) id.reset();
  if (id) id = Replayed(*draw.request, shadow, *id);
  const bool may_follow = id && !chooser_.EndsAnswer(draw.request->spec, *id) &&
                          static_cast<uint32_t>(*id) < runner_.config().vocab_size;
  slot.goes_on = may_follow;
  if (may_follow) {
    Draft& draft = slot.sequence->draft;
    draft.tokens[draft.num_tokens++] = *id;
    shadow.tokens.push_back(*id);
    if (shadow.format) {
      shadow.format = std::move(shadow.format_choice->next());
      shadow.format_end = static_cast<uint32_t>(shadow.tokens.size());
    }
  }
  shadow.format_choice.reset();
}

// Returns the drawn token; or, to measure drafts that are right so often, the answer's or another.
TokenId DraftModel::Replayed(const Request& request, const Sequence& shadow, TokenId drawn) const {
  const GenerateRequest& spec = request.spec;
  const size_t at = shadow.tokens.size() - request.prompt_tokens();
  if (!spec.replayed_accept || at >= spec.replayed.size()) return drawn;
  const TokenId right = spec.replayed[at];
  const bool is_right =
      DrawUniform(~request.seed, shadow.choice, shadow.tokens.size()) < *spec.replayed_accept;
  return is_right ? right : static_cast<TokenId>(right == 0 ? 1 : right - 1);
}

}  // namespace kvasir
