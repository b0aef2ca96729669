#include "schedule/step_draws.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "chat/answer_grammar.h"
#include "schedule/not_finite.h"
#include "schedule/request_answer.h"
#include "schedule/request_tracing.h"

namespace kvasir {
namespace {

bool IsPastLineLimit(const Request& request, const Sequence& sequence) {
  const std::optional<uint64_t>& limit_ms = request.spec.llama_quirks.line_timeout_ms;
  return limit_ms && sequence.text && sequence.text->has_line_end &&
         request.times.last_token_ns - request.times.first_token_ns > *limit_ms * 1'000'000;
}

// Puts the token of GenerateRequest::replayed into the place of the one that was drawn.
void Replay(TokenChooser::Draw& draw) {
  const Request& request = *draw.request;
  const size_t at = draw.sequence->tokens.size() - request.prompt_tokens();
  if (!draw.id || at >= request.spec.replayed.size()) return;
  draw.id = draw.token.id = request.spec.replayed[at];
}

// Takes a token of the answer into its format. Returns whether nothing may follow it.
bool AdvanceFormat(const Request& request, Sequence& sequence, const GeneratedToken& token) {
  const CompiledFormat& format = request.format;
  if (sequence.format) {
    sequence.format = std::move(sequence.format_choice->next());
    sequence.format_end = static_cast<uint32_t>(sequence.tokens.size());
  }
  if (sequence.thought) {
    const bool was_inside = sequence.thought->inside_thought();
    std::vector<AnswerEvent> unused;
    sequence.thought->Append(MarkOf(format.masks->trie().text(token.id)).value_or(token.text),
                             &unused);
    const bool is_inside = sequence.thought->inside_thought();
    sequence.thought_tokens += was_inside || is_inside;
    const bool is_long =
        is_inside && sequence.thought_tokens >= request.spec.format->max_thought_tokens;
    if (is_long) sequence.BeginFormat(format.closing);
    if (is_long || (was_inside && !is_inside)) sequence.thought.reset();
  }
  return sequence.format && sequence.format->IsAtEnd();
}

// Says why the format has no token.
Error NoToken(const TokenChooser::Draw& draw) {
  const size_t tokens = draw.sequence->tokens.size() - draw.request->prompt_tokens();
  const std::string why =
      draw.hits_limit
          ? fmt::format(
                "what the grammar allows there leads to more than {} places of it at once, "
                "or more than {} open rules; let fewer of its alternatives begin alike",
                kMaxPlaces, kMaxOpenRules)
          : "change the schema or grammar";
  return {Code::kUnsupported,
          fmt::format("format: no token can continue the answer after {} tokens; {}", tokens, why)};
}

}  // namespace

StepDraws::StepDraws(Runner& runner, KvCache& cache, const SchedulerOptions& options,
                     RequestQueues& requests, StepFigures& figures, TenantBook& tenants,
                     TokenChooser& chooser, DraftBook& drafts, RequestEnds& ends)
    : runner_(runner),
      cache_(cache),
      options_(options),
      requests_(requests),
      figures_(figures),
      tenants_(tenants),
      chooser_(chooser),
      drafts_(drafts),
      format_steps_(drafts.format_steps()),
      ends_(ends),
      beams_(runner, cache, options.target, options.logit_rows),
      heads_(runner, options.max_rows + options.parallel, options.logit_rows) {}

void StepDraws::Add(const StepBatch::Rows& rows, bool ends_prompt) {
  if (rows.num_drafted > 0) return AddDrafted(rows);
  Request& request = *rows.request;
  Sequence& sequence = *rows.sequence;
  const auto may_draw = [](const auto& of) { return !of->done && of->num_pending() == 0; };
  const bool samples =
      request.max_tokens > 0 &&
      (ends_prompt ? std::ranges::any_of(request.answer.sequences, may_draw) : may_draw(&sequence));
  const auto wanted = [&](uint32_t position) {
    if (position < sequence.next_logits) return false;
    if (request.spec.scores_prompt && position + 1 < request.prompt_tokens()) return true;
    return request.spec.on_logits != nullptr && position >= request.spec.logits_from;
  };
  if (sequence.format_choice) {  // what it waited for is known
    heads_.Add({&request, &sequence, sequence.format_choice->row().hidden.data(), rows.position - 1,
                samples, ends_prompt});
    return;
  }
  if (rows.num_rows == 0) {
    const uint32_t last = request.prompt_tokens() - 1;
    if (samples || wanted(last)) {
      heads_.Add(
          {&request, &sequence, request.answer.cursor_hidden.data(), last, samples, ends_prompt});
    }
    return;
  }
  for (uint32_t i = 0; i < rows.num_rows; ++i) {
    const uint32_t position = rows.position + i;
    const bool sample = samples && i + 1 == rows.num_rows;
    if (!sample && !wanted(position)) continue;
    heads_.Add({&request, &sequence, runner_.hidden(rows.first_row + i).data(), position, sample,
                ends_prompt});
  }
}

void StepDraws::AddDrafted(const StepBatch::Rows& rows) {
  Sequence& sequence = *rows.sequence;
  sequence.check = {.num_drafted = rows.num_drafted,
                    .first_row = rows.first_row,
                    .position = rows.position,
                    .is_open = true};
  for (uint32_t i = 0; i < rows.num_rows; ++i) {
    heads_.Add({.request = rows.request,
                .sequence = &sequence,
                .hidden = runner_.hidden(rows.first_row + i).data(),
                .position = rows.position + i,
                .sample = true,
                .ends_prompt = false,
                .drafted = true});
  }
}

void StepDraws::Run(StepBatch& batch) {
  format_steps_.Share(requests_.running, tenants_);
  for (;;) {
    const std::span<const Head> heads = figures_.TimedModel([&] { return heads_.ComputeNext(); });
    if (heads.empty()) break;
    const uint64_t logits_ns = MonotonicNs();
    ends_.CheckStepFiles();
    chooser_.Clear();
    beams_.Clear();
    for (uint32_t i = 0; i < heads.size(); ++i) {
      if (heads[i].drafted) continue;
      ReportLogits(heads[i], heads_.logits(i));
      if (!heads[i].request->answer.search) {
        AddDraws(heads[i], heads_.logits(i));
      } else if (!heads[i].request->done() && heads[i].sample) {
        beams_.Add(*heads[i].request, i);
      }
    }
    AddNextDrafted(heads);
    chooser_.Run(format_steps_.of_rows());
    beams_.Run(heads_.logits());
    figures_.AddSampling(MonotonicNs() - logits_ns);
    for (TokenChooser::Draw& draw : chooser_.draws()) UseDraw(draw);
    for (const BeamBatch::Step& step : beams_.steps()) UseBeams(step);
    DrawDrafted(heads);
  }
  for (const StepBatch::Rows& rows : batch.rows()) {
    if (rows.num_drafted == 0 || rows.request->done() || rows.sequence->done) continue;
    drafts_.Settle(*rows.request, *rows.sequence);
  }
  for (const StepBatch::Rows& rows : batch.rows()) {
    if (!rows.request->answer.prompt_done || rows.request->max_tokens > 0) continue;
    for (const auto& sequence : rows.request->answer.sequences) {
      if (!sequence->done) ends_.EndChoice(*rows.request, *sequence, {}, FinishReason::kLength);
    }
  }
}

void StepDraws::ReportLogits(const Head& head, std::span<const float> logits) {
  Request& request = *head.request;
  Sequence& sequence = *head.sequence;
  const GenerateRequest& spec = request.spec;
  if (request.done() || head.position < sequence.next_logits) return;
  const bool scores = spec.scores_prompt && head.position + 1 < request.prompt_tokens();
  const bool reports = spec.on_logits && head.position >= spec.logits_from;
  if (!scores && !reports) return;
  if (scores) {
    GeneratedToken token{.id = spec.prompt[head.position + 1]};
    chooser_.Logprobs(logits, *spec.logprobs, &token);
    request.events.Of(0).scored.push_back(std::move(token));
  }
  if (reports) spec.on_logits(sequence.choice, head.position, logits);
  sequence.next_logits = head.position + 1;
}

void StepDraws::AddDraws(const Head& head, std::span<const float> logits) {
  Request& request = *head.request;
  if (request.done() || !head.sample) return;
  const auto add = [&](Sequence& sequence) {
    if (sequence.done || sequence.num_pending() > 0) return;
    chooser_.Add(request, sequence, head.hidden, logits);
  };
  if (!head.ends_prompt) return add(*head.sequence);
  for (const auto& choice : request.answer.sequences) add(*choice);
}

// Adds the next row of each sequence whose rows so far were right, if it is among these heads.
// Returns whether there is one.
bool StepDraws::AddNextDrafted(std::span<const Head> heads) {
  bool any = false;
  const Sequence* added = nullptr;  // the rows of a sequence stand together
  for (size_t i = 0; i < heads.size(); ++i) {
    const Head& head = heads[i];
    if (!head.drafted || head.sequence == added || head.request->done()) continue;
    Sequence& sequence = *head.sequence;
    DraftCheck& check = sequence.check;
    if (!check.is_open || head.position != check.position + check.num_right) continue;
    if (check.num_right > 0 && !runner_.finite(check.first_row + check.num_right)) {
      drafts_.Settle(*head.request, sequence);
      ends_.Fail(*head.request, RowNotFinite(*head.request, sequence, head.position));
      continue;
    }
    ++check.num_right;
    added = &sequence;
    ReportLogits(head, heads_.logits(i));
    chooser_.Add(*head.request, sequence, head.hidden, heads_.logits(i));
    any = true;
  }
  return any;
}

// Draws the other rows of these heads, each after the one before it was used.
void StepDraws::DrawDrafted(std::span<const Head> heads) {
  for (;;) {
    chooser_.Clear();
    const uint64_t start_ns = MonotonicNs();
    if (!AddNextDrafted(heads)) return;
    chooser_.Run(format_steps_.of_rows());
    figures_.AddSampling(MonotonicNs() - start_ns);
    for (TokenChooser::Draw& draw : chooser_.draws()) UseDraw(draw);
  }
}

void StepDraws::UseDraw(TokenChooser::Draw& draw) {
  Request& request = *draw.request;
  Sequence& sequence = *draw.sequence;
  if (request.done()) return;
  format_steps_.Take(draw.steps.taken());
  Replay(draw);
  const bool checks = sequence.check.num_drafted > 0;
  if (checks) DraftBook::Note(sequence, draw);
  if (draw.waits) {
    std::vector<float>& hidden = sequence.format_choice->row().hidden;
    if (draw.hidden != hidden.data()) std::copy_n(draw.hidden, hidden.size(), hidden.data());
    return;
  }
  if (!draw.id) {
    if (checks) drafts_.Settle(request, sequence);
    const Error error = draw.is_stuck ? NoToken(draw) : NotFinite(request, "a logit is");
    ends_.Fail(request, error);
    return;
  }
  const TokenId id = *draw.id;
  Event& event = request.events.Of(sequence.choice);
  event.tokens.push_back(std::move(draw.token));
  NoteToken(request, sequence.token_ns);
  sequence.token_ns = request.times.last_token_ns;
  ++figures_.stats().generated_tokens;
  const bool ends = chooser_.EndsAnswer(request.spec, id);
  FinishReason reason =
      AppendToken(request, sequence, ends ? TokenRole::kEnd : TokenRole::kText, event);
  if (!ends && AdvanceFormat(request, sequence, event.tokens.back())) reason = FinishReason::kStop;
  if (sequence.choice == 0) NoteProgress(request, request.prompt_tokens());
  if (reason == FinishReason::kNone && IsPastLineLimit(request, sequence)) {
    reason = FinishReason::kLength;
  }
  if (reason != FinishReason::kNone) {
    if (checks) drafts_.Settle(request, sequence);
    ends_.EndChoice(request, sequence, {draw.hidden, runner_.config().hidden_size}, reason);
  } else if (options_.cache_mode == CacheMode::kNone) {
    KV_CHECK(cache_.Truncate(sequence.kv, 0));  // the next step computes everything again
    sequence.long_rope = options_.IsLong(sequence.tokens.size());
  }
  sequence.format_choice.reset();
}

// `previous_ns`: when the token before it came; 0: it is the first one.
void StepDraws::NoteToken(Request& request, uint64_t previous_ns) {
  request.times.last_token_ns = MonotonicNs();
  if (request.times.first_token_ns == 0) {
    request.times.first_token_ns = request.times.last_token_ns;
    request.times.parts.Enter(FirstTokenTime::State::kDone, request.times.first_token_ns,
                              figures_.cache_ns());
  }
  if (previous_ns != 0) {
    const uint64_t gap_ns = request.times.last_token_ns - previous_ns;
    figures_.AddToken(gap_ns);
  }
  TraceCaughtUp(request);
}

void StepDraws::UseBeams(const BeamBatch::Step& step) {
  Request& request = *step.request;
  if (request.done()) return;
  if (!step.finite) return ends_.Fail(request, NotFinite(request, "a logit is"));
  NoteToken(request, request.times.last_token_ns);
  BeamSearch& search = *request.answer.search;
  request.answer.longest = search.length() + 1 - request.prompt_tokens();
  // A quota may have been lowered since the search began.
  if (!search.done() && request.answer.longest >= request.max_tokens) search.End();
  if (!search.done()) {
    const Status followed = figures_.TimedCache([&] { return beams_.Follow(request); });
    if (!followed) ends_.Fail(request, followed.error());
    return;
  }
  ends_.EndSearch(request);
}

void StepDraws::ContinueFormats(const StepBatch& batch) {
  if (!format_steps_.Continue(requests_.running, tenants_, !batch.empty())) return;
  for (const auto& request : requests_.running) {
    if (request->done()) continue;
    const std::optional<Error> error = FormatSteps::ErrorOf(*request);
    if (error) ends_.Fail(*request, *error);
  }
  requests_.CollectEnded();
}

void StepDraws::Zero() {
  heads_.Zero();
  beams_.Zero();
}

}  // namespace kvasir
