#include "schedule/drafter.h"

#include <algorithm>
#include <optional>

#include "base/fault.h"
#include "grammar/token_trie.h"

namespace kvasir {
namespace {

// A place in a text, after tokens that equal the end of another one.
struct TextPlace {
  size_t at;
  uint32_t num_equal;
};

// Returns how many tokens before text[at] equal the last ones of `tokens`, at most as many as count
// for a match of the cache.
uint32_t EqualBefore(std::span<const TokenId> text, size_t at, std::span<const TokenId> tokens) {
  const size_t most = std::min<size_t>({at, tokens.size(), Continuations::kMaxEqual});
  uint32_t num = 0;
  while (num < most && text[at - 1 - num] == tokens[tokens.size() - 1 - num]) ++num;
  return num;
}

// Returns the place after the longest end of `tokens` (of 8, 3 or 2) in text[0, end): of several
// the first one from `from` on, else the last one before it.
std::optional<TextPlace> FindEnd(std::span<const TokenId> text, std::span<const TokenId> tokens,
                                 size_t from, size_t end) {
  for (const uint32_t length : Continuations::kLengths) {
    if (tokens.size() < length) continue;
    const auto wanted = tokens.last(length);
    const auto is_after = [&](size_t at) {
      return at >= length && text[at - 1] == wanted.back() &&
             std::ranges::equal(text.subspan(at - length, length), wanted);
    };
    for (size_t at = from; at < end; ++at) {
      if (is_after(at)) return TextPlace{at, EqualBefore(text, at, tokens)};
    }
    for (size_t at = std::min(from, end); at-- > length;) {
      if (is_after(at)) return TextPlace{at, EqualBefore(text, at, tokens)};
    }
  }
  return std::nullopt;
}

}  // namespace

Drafter::Drafter(const SchedulerOptions& options, const KvCache& cache, const TokenChooser& chooser,
                 TenantBook& tenants, FormatSteps& format_steps)
    : options_(options),
      cache_(cache),
      chooser_(chooser),
      tenants_(tenants),
      format_steps_(format_steps) {}

uint32_t Drafter::LongestDraft(const GenerateRequest& spec) const {
  if (options_.speculate == Speculate::kOff || options_.cache_mode == CacheMode::kNone ||
      spec.beams || !spec.source.empty()) {
    return 0;
  }
  return std::min({options_.draft_max, spec.draft_max.value_or(kMaxDraft), kMaxDraft});
}

uint32_t Drafter::MostTokens(const Request& request, const Sequence& sequence) const {
  const auto known = static_cast<uint32_t>(sequence.tokens.size());
  const auto below = [&](uint64_t limit) {
    return static_cast<uint32_t>(limit - std::min<uint64_t>(limit, known));
  };
  uint32_t most = std::min({LongestDraft(request.spec), below(request.room.draft_tokens),
                            below(uint64_t{request.prompt_tokens()} + request.max_tokens - 1)});
  // A step's rows are all exact, or none is.
  if (request.retention) {
    const bool scores = FaultActive(Fault::kDraftedScore);
    most = std::min(most, below(scores ? request.retention->NextDecision(known - 1)
                                       : request.retention->DraftEnd(known - 1)));
  }
  if (options_.long_rope) {
    // RestartLong looks at the first choice alone.
    if (request.num_live() > 1) return 0;
    if (!sequence.long_rope) most = std::min(most, below(options_.long_rope->after_tokens));
  }
  return most;
}

void Drafter::Fill(const Request& request, Sequence& sequence) const {
  Draft& draft = sequence.draft;
  draft.num_tokens = 0;
  draft.withheld = false;
  const uint32_t most = MostTokens(request, sequence);
  if (most == 0) return;
  if (options_.drafts) {
    options_.drafts(request, sequence, draft);
    draft.num_tokens = std::min(draft.num_tokens, most);
  } else {
    FillFromMemory(request, sequence, most, draft);
    if (!request.spec.prediction.empty()) FillFromPrediction(request, sequence, most, draft);
  }
  Cut(request, sequence, draft);
}

void Drafter::FillFromMemory(const Request& request, const Sequence& sequence, uint32_t most,
                             Draft& draft) const {
  const std::span<const TokenId> tokens = sequence.tokens;
  draft.source = DraftSource::kMemory;
  if (request.shares() && sequence.kv.has_place()) {
    const KvCache::Continuation found =
        cache_.Continue(sequence.kv, tokens, std::span(draft.tokens).first(most));
    draft.num_tokens = found.num_tokens;
    draft.num_equal = found.num_equal;
    // What is published the memory has too.
    if (draft.num_tokens > 0 || sequence.kv.publishes()) return;
  }
  const auto own = tokens.last(std::min<size_t>(tokens.size(), kOwnTokens));
  const auto place = FindEnd(own, own, own.size(), own.size());
  if (!place) return;
  draft.num_equal = place->num_equal;
  // Beyond the end comes what was drafted: it repeats.
  for (; draft.num_tokens < most; ++draft.num_tokens) {
    const size_t at = place->at + draft.num_tokens;
    draft.tokens[draft.num_tokens] = at < own.size() ? own[at] : draft.tokens[at - own.size()];
  }
}

// Drafts the prediction's beginning while the answer is that, then what follows its longest match.
void Drafter::FillFromPrediction(const Request& request, Sequence& sequence, uint32_t most,
                                 Draft& draft) const {
  const std::span<const TokenId> text = request.spec.prediction;
  const std::span<const TokenId> tokens = sequence.tokens;
  const auto answer = tokens.subspan(request.prompt_tokens());
  std::optional<TextPlace> place;
  const bool begins = !sequence.left_prediction && answer.size() < text.size() &&
                      std::ranges::equal(answer, text.first(answer.size()));
  sequence.left_prediction = !begins;
  if (begins) {
    const auto num = static_cast<uint32_t>(answer.size());
    place = TextPlace{answer.size(), std::max(num, Continuations::kLengths[0])};
  } else {
    place = FindEnd(text, answer, sequence.predicted, text.size());
  }
  if (!place) return;
  sequence.predicted = static_cast<uint32_t>(place->at);
  if (draft.num_tokens > 0 && draft.num_equal > place->num_equal) return;
  const auto next = text.subspan(place->at).first(std::min<size_t>(most, text.size() - place->at));
  std::ranges::copy(next, draft.tokens.begin());
  draft.num_tokens = static_cast<uint32_t>(next.size());
  draft.source = DraftSource::kPrediction;
  draft.num_equal = place->num_equal;
}

// Ends the draft before a token that cannot be drawn, or after which none is.
void Drafter::Cut(const Request& request, const Sequence& sequence, Draft& draft) const {
  const auto ends = [&](TokenId id) { return chooser_.EndsAnswer(request.spec, id); };
  draft.num_tokens =
      static_cast<uint32_t>(std::ranges::find_if(draft.all(), ends) - draft.all().begin());
  if (!sequence.format) return;
  if (sequence.format_end != sequence.tokens.size()) {  // it reads the answer again first
    draft.num_tokens = 0;
    return;
  }
  const TokenTrie& trie = request.format.masks->trie();
  Matcher at = *sequence.format;
  WalkSteps steps(format_steps_.of_known_draft());
  for (uint32_t i = 0; i < draft.num_tokens; ++i) {
    const std::string_view text = trie.text(draft.tokens[i]);
    TextWork work(at, text);
    if (text.empty() || !work.Run(steps) || !work.next()) {
      draft.num_tokens = i;
      break;
    }
    at = *work.next();
  }
  format_steps_.Take(steps.taken());
}

double Drafter::Chance(const Request& request, const Sequence& sequence) const {
  return request.answer.pace.Chance(KindOf(sequence.draft), tenants_.drafts(request.tenant));
}

double Drafter::ModelChance(const Request& request) const {
  return request.answer.pace.Chance(KindOf({.source = DraftSource::kModel}),
                                    tenants_.drafts(request.tenant));
}

bool Drafter::MayDraft(const Request& request) const {
  return options_.speculate == Speculate::kAlways ||
         request.answer.pace.MayDraft(request.answer.completion_tokens);
}

void Drafter::Count(Request& request, const Draft& draft, uint32_t num_drafted,
                    uint32_t num_accepted) {
  const uint32_t kind = KindOf(draft);
  request.answer.pace.counts().Add(kind, num_drafted, num_accepted);
  // Tenants without a number share nothing, not even that.
  if (request.tenant != 0) {
    tenants_.drafts(request.tenant).counts().Add(kind, num_drafted, num_accepted);
  }
}

void Drafter::CountUntried(Request& request, const Draft& draft, uint32_t num_steps) const {
  const uint32_t kind = KindOf(draft);
  request.answer.pace.CountUntried(kind, num_steps);
  if (request.tenant != 0) tenants_.drafts(request.tenant).CountUntried(kind, num_steps);
}

}  // namespace kvasir
