#include "schedule/draft_model.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/random.h"
#include "base/wipe.h"

namespace kvasir {
namespace {

// The logit of a token that only the other vocabulary has: of weight 0, and finite.
constexpr float kNoToken = -1e30f;
// After so many tokens of an answer it is asked again whether reading the prompt pays.
constexpr uint32_t kAskAgainTokens = 64;
// Before its steps were measured: a row of a prompt costs such a part of a step of one row.
constexpr double kUnknownRowShare = 0.25;

}  // namespace

// The KV of a sequence, and its tokens with those that are drafted. States: free (no request);
// waits (no KV: reading its prompt does not pay); reads (kv lacks more than kMostBehind tokens);
// drafts.
struct DraftModel::Slot {
  std::optional<RequestId> id;  // absent: free
  Request* request = nullptr;   // while a Fill or Sweep runs
  Sequence* sequence = nullptr;
  uint32_t choice = 0;
  bool has_kv = false;
  uint32_t ask_at = 0;  // answer tokens
  KvSequence kv;
  Sequence shadow;          // its tokens, and its place in the format
  uint32_t num_known = 0;   // of shadow.tokens: not drafted
  uint32_t most = 0;        // tokens of its draft
  double chance = 0;        // that a drafted token is right
  bool reads = false;       // in this Fill
  bool unreadable = false;  // a token is beyond the model's vocabulary
  bool goes_on = false;     // its draft may get longer in this Fill
  bool is_behind() const { return has_kv && num_known - kv.num_committed() > kMostBehind; }
  void DropKv() {
    kv = KvSequence();
    has_kv = false;
  }
};

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

DraftModel::~DraftModel() { DropAll(); }

void DraftModel::Release(Slot& slot) {
  slot.DropKv();
  slot.shadow.format.reset();
  slot.shadow.format_choice.reset();
  Wipe(&slot.shadow.tokens);
  slot.id.reset();
  slot.unreadable = false;
  slot.num_known = slot.ask_at = 0;
}

void DraftModel::DropAll() {
  for (const auto& slot : slots_) Release(*slot);
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
    const auto request = std::ranges::find(running, *slot->id, [](const auto& r) { return r->id; });
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

bool DraftModel::CanRead(std::span<const TokenId> tokens) const {
  const uint32_t vocab_size = runner_.config().vocab_size;
  return std::ranges::all_of(tokens,
                             [&](TokenId id) { return static_cast<uint32_t>(id) < vocab_size; });
}

// Finds the sequences that want a draft, and brings their slots up to what is known.
void DraftModel::FindWishes(std::span<const std::unique_ptr<Request>> running) {
  wishes_.clear();
  for (const auto& request : running) {
    if (request->done() || !request->answer.prompt_done || request->room.is_starved) continue;
    if (request->is_erased) continue;  // what was dropped of it is not read again
    for (const auto& sequence : request->answer.sequences) {
      Draft& draft = sequence->draft;
      if (sequence->done || sequence->num_pending() != 1 || sequence->waits_for_format() ||
          draft.num_tokens > 0) {
        continue;
      }
      const std::vector<TokenId>& known = sequence->tokens;
      const uint32_t most = drafter_.MostTokens(*request, *sequence);
      if (most == 0 || known.size() + most > parts_.ctx_size) continue;
      Slot& slot = SlotOf(*request, *sequence);
      slot.request = request.get();
      slot.sequence = sequence.get();
      slot.most = most;
      slot.unreadable = slot.unreadable || !CanRead(std::span(known).subspan(slot.num_known));
      if (slot.unreadable) continue;
      if (slot.has_kv) Accept(slot, known, cache_);
      std::vector<TokenId>& tokens = slot.shadow.tokens;
      if (tokens.capacity() < known.capacity() + kMaxDraft) {
        tokens.reserve(known.capacity() + kMaxDraft);
      }
      tokens.resize(slot.num_known);
      tokens.insert(tokens.end(), known.begin() + slot.num_known, known.end());
      slot.num_known = static_cast<uint32_t>(known.size());
      draft.source = DraftSource::kModel;
      draft.num_equal = 0;
      slot.chance = drafter_.Chance(*request, *sequence);
      wishes_.push_back(&slot);
    }
  }
}

// Returns how long a step of the draft model takes.
double DraftModel::StepNs(uint32_t rows, const StepCost& cost) const {
  if (cost_.knows_anything()) return cost_.PredictNs({.decode_rows = rows});
  // As much less than the other model's as its weights are.
  const auto weights = static_cast<double>(runner_.weights_bytes());
  const double share = weights > 0 && weights_bytes_ > 0
                           ? weights / static_cast<double>(weights_bytes_)
                           : kUnknownRowShare;
  return share * cost.PredictNs({.decode_rows = 1}) * (1 + (rows - 1) * kUnknownRowShare);
}

// Finds the length of drafts, of these slots together, that gives most tokens a second.
DraftModel::Pace DraftModel::PaceOf(std::span<const Slot* const> slots,
                                    const StepCost& cost) const {
  Pace pace;
  const auto rows = static_cast<uint32_t>(slots.size());
  const double plain_ns = cost.PredictNs({.decode_rows = rows});
  const double draft_ns = StepNs(rows, cost);
  const auto limit_ns = static_cast<double>(options_.target_step_ns);
  double tokens = rows, best = rows / plain_ns;
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
    if (tokens / ns <= best) continue;
    best = tokens / ns;
    pace.longest = length;
    pace.saved_ns = (plain_ns - ns * rows / tokens) / rows;
  }
  return pace;
}

// Looks for the sequence's beginning in the cache, and decides whether to read the rest.
bool DraftModel::Begin(Slot& slot, const StepCost& cost) {
  Request& request = *slot.request;
  const GenerateRequest& spec = request.spec;
  const bool always = options_.speculate == Speculate::kAlways;
  const uint32_t so_far = request.answer.longest;
  if (so_far < slot.ask_at) return false;
  slot.ask_at = so_far + kAskAgainTokens;
  const std::string& owner = request.cache_owner();
  Pace pace;
  double left = 0;  // tokens of the answer
  if (!always) {
    const Slot* const slots[] = {&slot};
    pace = PaceOf(slots, cost);
    const uint32_t expected = tenants_.lengths().ExpectedOfTenant(request.tenant, so_far);
    left = std::min(expected, request.max_tokens) - std::min(so_far, expected);
    if (pace.longest == 0 || left * pace.saved_ns <= 0) return false;
  }
  MatchOptions options{.reuse = request.shares(), .use_cursor = false, .use_tier = false};
  options.account = cache_.EnterAccount(owner);
  MatchResult match = cache_.Match(cache_.EnterNamespace(owner, parts_.identity, spec.cache_salt),
                                   slot.sequence->tokens, options);
  if (!always) {
    const uint32_t unread = slot.num_known - match.num_reused();
    const uint32_t rows = std::min(unread, parts_.max_rows);
    const double read_ns = cost_.knows_anything()
                               ? cost_.PredictNs({.prefill_rows = rows}) * unread / rows
                               : StepNs(unread, cost);
    if (left * pace.saved_ns <= read_ns) return false;
  }
  const uint32_t reserve = std::min(request.prompt_tokens() + request.max_tokens, parts_.ctx_size);
  slot.kv = cache_.Fetch(std::move(match), reserve + kMaxDraft);
  slot.has_kv = true;
  return true;
}

void DraftModel::Fill(std::span<const std::unique_ptr<Request>> running, const StepCost& cost) {
  last_ns_ = 0;
  const bool always = options_.speculate == Speculate::kAlways;
  if (!always && !cost.knows_anything()) return;
  FindWishes(running);
  std::erase_if(wishes_, [&](Slot* slot) { return !slot->has_kv && !Begin(*slot, cost); });
  if (wishes_.empty()) return;
  ReadPrompts(cost);
  const uint64_t start_ns = MonotonicNs();
  std::erase_if(wishes_, [&](Slot* slot) {
    if (!slot->has_kv || slot->is_behind()) return true;
    slot->sequence->draft.withheld = !drafter_.MayDraft(*slot->request);
    return slot->sequence->draft.withheld;
  });
  uint32_t longest = always ? kMaxDraft : 0;
  if (!always && !wishes_.empty()) longest = PaceOf(wishes_, cost).longest;
  for (Slot* slot : wishes_) slot->sequence->draft.withheld = longest == 0;
  DraftTokens(running, longest);
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
  cost_.Observe(work, MonotonicNs() - start_ns);
  return status.has_value();
}

// Reads what KV of sequences lacks, all except the last token: one step, or all of it.
void DraftModel::Read(const StepCost& cost) {
  const bool always = options_.speculate == Speculate::kAlways;
  do {
    ClearStep();
    const StepWork decodes{.decode_rows = static_cast<uint32_t>(wishes_.size())};
    const double spare_ns = static_cast<double>(options_.target_step_ns) - cost.PredictNs(decodes);
    uint32_t free =
        always || options_.target_step_ns == 0
            ? parts_.max_rows
            : RowsWithin(cost_, std::max(spare_ns, 1.0), {.decode_rows = 1}, parts_.max_rows, 0);
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
void DraftModel::DraftTokens(std::span<const std::unique_ptr<Request>> running, uint32_t longest) {
  format_steps_.ShareWithDrafts(running, tenants_);
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
