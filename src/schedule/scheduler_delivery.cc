// Events: sampled tokens, the end of choices and requests, calls of sinks, statistics.
#include <algorithm>
#include <set>
#include <string>

#include "base/begins_with.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/result.h"
#include "chat/answer_grammar.h"
#include "schedule/request_answer.h"
#include "schedule/request_tracing.h"
#include "schedule/scheduler.h"

namespace kvasir {
namespace {

constexpr double kMs = 1e-6;  // of a nanosecond

bool IsPastLineLimit(const Request& request, const Sequence& sequence) {
  const std::optional<uint64_t>& limit_ms = request.spec.llama_quirks.line_timeout_ms;
  return limit_ms && sequence.has_line_end &&
         request.times.last_token_ns - request.times.first_token_ns > *limit_ms * 1'000'000;
}

// Puts the token of GenerateRequest::replayed into the place of the one that was drawn.
void Replay(TokenChooser::Draw& draw) {
  const Request& request = *draw.request;
  const size_t at = draw.sequence->tokens.size() - request.prompt_tokens();
  if (!draw.id || at >= request.spec.replayed.size()) return;
  draw.id = draw.token.id = request.spec.replayed[at];
}

}  // namespace

void Scheduler::UseDraw(TokenChooser::Draw& draw) {
  Request& request = *draw.request;
  Sequence& sequence = *draw.sequence;
  if (request.done()) return;
  format_steps_.Take(draw.steps.taken());
  Replay(draw);
  const bool checks = sequence.check.num_drafted > 0;
  if (checks) NoteDrafted(sequence, draw);
  if (draw.waits) {
    std::vector<float>& hidden = sequence.format_choice->row().hidden;
    if (draw.hidden != hidden.data()) std::copy_n(draw.hidden, hidden.size(), hidden.data());
    return;
  }
  if (!draw.id) {
    if (checks) SettleDraft(request, sequence);
    const Error error = draw.is_stuck
                            ? Error{Code::kUnsupported,
                                    fmt::format("format: no token can continue the answer after {} "
                                                "tokens; change the schema "
                                                "or grammar",
                                                sequence.tokens.size() - request.prompt_tokens())}
                            : NotFinite(request, "a logit is");
    EndRequest(request, FinishReason::kError, &error);
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
  if (sequence.choice == 0) ReportProgress(request, request.prompt_tokens());
  if (reason == FinishReason::kNone && IsPastLineLimit(request, sequence)) {
    reason = FinishReason::kLength;
  }
  if (reason != FinishReason::kNone) {
    if (checks) SettleDraft(request, sequence);
    EndSequence(request, sequence, draw.hidden, reason);
  } else if (options_.cache_mode == CacheMode::kNone) {
    KV_CHECK(cache_.Truncate(sequence.kv, 0));  // the next step computes everything again
    sequence.long_rope = options_.IsLong(sequence.tokens.size());
  }
  sequence.format_choice.reset();
}

// `previous_ns`: when the token before it came; 0: it is the first one.
void Scheduler::NoteToken(Request& request, uint64_t previous_ns) {
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

// Returns whether nothing may follow the token.
bool Scheduler::AdvanceFormat(const Request& request, Sequence& sequence,
                              const GeneratedToken& token) {
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

// `hidden`: of the last committed token, for its Cursor.
void Scheduler::EndSequence(Request& request, Sequence& sequence, const float* hidden,
                            FinishReason reason) {
  NoteRetained(request, sequence);
  NoteSpans(request, sequence);
  sequence.kv.Close();
  // If only the prompt is committed, its tail and Cursor are kept already.
  if (sequence.kv.num_committed() > request.prompt_tokens()) {
    figures_.TimedCache([&] { cache_.Commit(sequence.kv, 0, KvCache::CommitKind::kEnd); });
    cache_.KeepCursor(sequence.kv, {hidden, runner_.config().hidden_size});
  }
  sequence.kv = KvSequence();
  sequence.retained.sums.Release();
  sequence.done = true;
  requests_.retry_admission = true;
  FinishChoice(request, sequence.choice, reason);
  if (!request.spec.only_when_idle) {
    if (!request.spec.embeds) {
      tenants_.lengths().Add(
          request.tenant, static_cast<uint32_t>(sequence.tokens.size()) - request.prompt_tokens());
    }
    figures_.AddChoice(sequence.tokens.size(), reason);
  }
  if (request.done()) FinishRequest(request, reason);
}

// Gives back all blocks of its choices.
void Scheduler::ReleaseSequences(Request& request) {
  request.answer.unused_beams.clear();
  for (const auto& sequence : request.answer.sequences) {
    if (!sequence->done) NoteRetained(request, *sequence);
    if (!sequence->done) NoteSpans(request, *sequence);
    sequence->kv = KvSequence();
    sequence->retained.sums.Release();
    sequence->format_choice.reset();
    sequence->done = true;
  }
  requests_.retry_admission = true;
}

void Scheduler::EndRequest(Request& request, FinishReason reason, const Error* error) {
  if (request.answer.search && request.times.past_deadline && error == nullptr) {
    request.answer.search->End();
    AddHypotheses(request);
  }
  ReleaseSequences(request);
  for (uint32_t choice = 0; choice < request.spec.n; ++choice) {
    if (request.events.is_done(choice)) continue;
    FinishChoice(request, choice, reason);
    if (!request.spec.only_when_idle) {
      figures_.AddChoice(choice < request.answer.sequences.size()
                             ? request.answer.sequences[choice]->tokens.size()
                             : 0,
                         reason);
    }
    if (error != nullptr) {
      request.events.Of(choice).error = *error;
    } else if (request.times.past_deadline) {
      request.events.Of(choice).stop_match = "deadline";
    }
  }
  if (error != nullptr && error->code == Code::kCorruption) ++figures_.stats().requests.corrupted;
  FinishRequest(request, reason);
}

void Scheduler::FinishRequest(Request& request, FinishReason reason) {
  loads_.End(request);
  request.spans.Stop();
  request.room.reservation.Release();
  zeroes_scratch_ |= request.is_erased;
  const uint64_t now = MonotonicNs();
  const uint64_t first = request.times.first_token_ns == 0 ? now : request.times.first_token_ns;
  request.times.parts.Enter(FirstTokenTime::State::kDone, now, figures_.cache_ns());
  Receipt& receipt = request.receipt;
  if (request.times.admitted_ns == 0) {  // never ran
    receipt.prompt_tokens = receipt.computed = request.prompt_tokens();
    receipt.ignored = request.spec.ignored;
    receipt.clock_in_prompt = request.spec.clock_in_prompt;
  }
  FillRetention(request);
  FillSpans(request);
  receipt.ttft_ms = static_cast<double>(first - request.times.submitted_ns) * kMs;
  FillFirstTokenParts(request.times.parts, receipt);
  if (request.answer.longest > 1) {
    receipt.tpot_ms = static_cast<double>(request.times.last_token_ns - first) * kMs /
                      (request.answer.longest - 1);
  }
  const uint32_t reused = receipt.cached_tokens() + receipt.source_reused;
  receipt.saved_ms = reused * figures_.RowNs() * kMs;
  if (!request.spec.only_when_idle) CountRequest(request, reason, now, figures_.stats());
  WriteTrace(request, reason, now);
}

void Scheduler::Cancel(RequestId id) {
  const auto is = [&](const auto& request) { return request->id == id; };
  const auto waiting = std::find_if(requests_.waiting.begin(), requests_.waiting.end(), is);
  if (waiting != requests_.waiting.end()) {
    EndRequest(**waiting, FinishReason::kCancelled, nullptr);
    requests_.ended.push_back(std::move(*waiting));
    requests_.waiting.erase(waiting);
    return;
  }
  const auto spare = std::find_if(requests_.spare.begin(), requests_.spare.end(), is);
  if (spare != requests_.spare.end()) {
    EndRequest(**spare, FinishReason::kCancelled, nullptr);
    requests_.ended.push_back(std::move(*spare));
    requests_.spare.erase(spare);
    return;
  }
  const auto running = std::find_if(requests_.running.begin(), requests_.running.end(), is);
  if (running != requests_.running.end() && !(*running)->done()) {
    EndRequest(**running, FinishReason::kCancelled, nullptr);
  }
}

void Scheduler::StopSpare(Spare which) {
  const auto end = [&](std::deque<std::unique_ptr<Request>>& requests) {
    std::erase_if(requests, [&](std::unique_ptr<Request>& request) {
      if (!request->spec.only_when_idle) return false;
      requests_.ended.reserve(requests_.ended.size() + 1);
      EndRequest(*request, FinishReason::kCancelled, nullptr);
      requests_.ended.push_back(std::move(request));
      return true;
    });
  };
  for (const auto& request : requests_.running) {
    if (request->spec.only_when_idle && !request->done()) {
      EndRequest(*request, FinishReason::kCancelled, nullptr);
    }
  }
  end(requests_.waiting);
  if (which == Spare::kAll) end(requests_.spare);
}

void Scheduler::CancelAll() {
  StopSpare(Spare::kAll);
  while (!requests_.waiting.empty()) Cancel(requests_.waiting.front()->id);
  for (const auto& request : requests_.running) {
    if (!request->done()) EndRequest(*request, FinishReason::kCancelled, nullptr);
  }
}

void Scheduler::FailAll(const Error& error) {
  StopSpare(Spare::kAll);
  for (; !requests_.waiting.empty(); requests_.waiting.pop_front()) {
    if (!requests_.waiting.front()->done())
      EndRequest(*requests_.waiting.front(), FinishReason::kError, &error);
    requests_.ended.push_back(std::move(requests_.waiting.front()));
  }
  for (const auto& request : requests_.running) {
    if (!request->done()) EndRequest(*request, FinishReason::kError, &error);
  }
}

// Ends requests of which a row waits for its format: the row holds activations of what is erased,
// for as long as the walk takes.
void Scheduler::EndWalks(std::span<Request* const> requests) {
  static const Error kErased{Code::kUnavailable,
                             "what was asked was erased while it was found out which tokens the "
                             "format allows next; ask again"};
  for (Request* const request : requests) {
    const bool waits = std::ranges::any_of(request->answer.sequences,
                                           [](const auto& one) { return one->waits_for_format(); });
    if (waits && !request->done()) EndRequest(*request, FinishReason::kError, &kErased);
  }
}

void Scheduler::Erase(std::string_view owner, ErasureSink&& done) {
  if (draft_model_) draft_model_->DropAll();
  EndWalks(requests_.StopSharing(owner, {}));
  erasures_.Erase(owner, std::move(done));
  requests_.retry_admission = true;
}

void Scheduler::EraseHere(const Digest& owner, ErasureSink&& done) {
  if (draft_model_) draft_model_->DropAll();
  std::set<std::string> names;
  const auto collect = [&](const auto& requests) {
    for (const auto& request : requests) {
      if (KvCache::OwnerOf(request->cache_owner()) == owner) names.insert(request->cache_owner());
    }
  };
  collect(requests_.waiting);
  collect(requests_.spare);
  collect(requests_.running);
  for (const std::string& name : names) EndWalks(requests_.StopSharing(name, {}));
  erasures_.EraseHere(owner, std::move(done));
  requests_.retry_admission = true;
}

void Scheduler::Forget(const ForgetRequest& request, const std::shared_ptr<const KeptPrompts>& kept,
                       ErasureSink&& done) {
  if (draft_model_) draft_model_->DropAll();
  EndWalks(requests_.StopSharing(request.owner, std::span(request.ids).first(request.last + 1)));
  erasures_.Forget(request, kept, std::move(done));
  requests_.retry_admission = true;
}

// Zeroes what steps leave in memory that the next ones use again.
void Scheduler::ZeroScratch() {
  batch_.Zero();
  heads_.Zero();
  chooser_.Zero();
  beams_.Zero();
  runner_.ZeroScratch();
  if (draft_model_) draft_model_->Zero();
  zeroes_scratch_ = false;
}

Scheduler::Ended Scheduler::Deliver() {
  const auto send = [this](Request& request) {
    return request.events.Send(request.sink, [&](Event& event, bool is_first) {
      event.receipt = request.receipt;
      event.completion_tokens = request.answer.completion_tokens;
      event.prefilled_tokens = std::min(request.answer.prefilled_tokens, request.receipt.computed);
      if (on_end_ && is_first) on_end_(request);
    });
  };
  Ended ended;
  for (const auto& request : requests_.running) send(*request);
  std::erase_if(requests_.ended, [&](const std::unique_ptr<Request>& request) {
    if (!send(*request)) return false;
    DeliverTrace(*request);
    ++ended.count;
    ended.bytes += request->bytes;
    return true;
  });
  // Last: what ended has no memory then.
  ended.num_erased = erasures_.ReportErased([this] { ZeroScratch(); });
  erasures_.ReportFlushed();
  return ended;
}

void Scheduler::CountStep(uint64_t step_ns) {
  figures_.AddStep({.work = batch_.work(),
                    .num_rows = batch_.num_computed(),
                    .decode_rows = batch_.decode_rows(),
                    .ns = step_ns,
                    .kv_read_bytes = runner_.kv_read_bytes(),
                    .weight_read_bytes = runner_.weight_read_bytes()});
  Charge();
  CountDrafts(step_ns);
}

void Scheduler::CheckInvariants() const {
  cache_.CheckInvariants();
  if (draft_model_) draft_model_->CheckInvariants();
  uint32_t choices = 0;
  for (const auto& request : requests_.running) {
    KV_CHECK(!request->answer.sequences.empty());
    choices += request->num_live();
    for (const auto& sequence : request->answer.sequences) {
      const std::span<const TokenId> tokens = sequence->tokens;
      KV_CHECK(sequence->kv.num_committed() <= tokens.size());
      // The request, its sequence and the sequence's KV have the same ids.
      KV_CHECK(BeginsWith(tokens, std::span<const TokenId>(request->spec.prompt)));
      KV_CHECK(BeginsWith(tokens, sequence->kv.tokens()));
      KV_CHECK(!sequence->done || sequence->kv.tables().empty());
    }
  }
  KV_CHECK(choices <= options_.parallel);
  if (requests_.running.empty()) KV_CHECK(cache_.usage().pinned_blocks == 0);
}

}  // namespace kvasir
