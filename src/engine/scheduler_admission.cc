// Admission: when a waiting request may run, and what the cache gives it.
#include <algorithm>

#include "base/clock.h"
#include "engine/scheduler.h"

namespace kvasir {

void Scheduler::Enqueue(std::unique_ptr<Request>&& request) {
  request->events.resize(request->spec.n);
  request->has_event.resize(request->spec.n);
  request->choice_done.resize(request->spec.n);
  for (Event& event : request->events) event.tokens.reserve(1);
  waiting_.push_back(std::move(request));
}

// Checks all files: whenever a request waits for admission, else every 100 ms. That is enough,
// because each step checks the files that it reads.
void Scheduler::CheckFiles() {
  constexpr uint64_t kPeriodNs = 100'000'000;
  if (options_.files == nullptr || (waiting_.empty() && running_.empty())) return;
  const uint64_t now = MonotonicNs();
  if (waiting_.empty() && now - files_checked_ns_ < kPeriodNs) return;
  files_checked_ns_ = now;
  if (const Status files = options_.files->CheckAll(); !files) FailAll(files.error());
  CollectEnded();
}

void Scheduler::CheckStepFiles() {
  if (options_.files == nullptr) return;
  if (const Status files = options_.files->CheckStep(); !files) FailAll(files.error());
}

void Scheduler::Admit() {
  uint32_t running = 0;
  for (const auto& request : running_) running += request->spec.n - request->num_done;
  while (!waiting_.empty() && retry_admission_) {
    Request& head = *waiting_.front();
    if (running + head.spec.n > options_.parallel) return;
    if (!TryAdmit(head)) {
      retry_admission_ = false;
      return;
    }
    running += head.spec.n;
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
}

bool Scheduler::TryAdmit(Request& request) {
  const GenerateRequest& spec = request.spec;
  MatchResult match = Match(request, spec.prompt, {.use_cursor = spec.reuse == Reuse::kAll});
  // Without other requests this one would fit: submission checked its demand. The restarts come
  // first, because Reserve may take blocks beyond the demand when they are there.
  Result<Reservation> restarts = Reservation();
  if (request.demand.restarts()) restarts = cache_.ReserveRestarts(request.demand);
  if (!restarts) return false;
  Result<Reservation> reservation = cache_.Reserve(match, request.demand);
  if (!reservation) return false;
  request.admitted_ns = MonotonicNs();
  ExplainMatch(request, match);
  if (match.has_cursor()) {
    const std::span<const float> hidden = cache_.CursorHidden(match);
    request.cursor_hidden.assign(hidden.begin(), hidden.end());
  }
  KvSequence kv = TimedCache([&] {
    return cache_.Fetch(std::move(match), request.prompt_tokens() + request.max_tokens,
                        *reservation);
  });
  kv.KeepResumePoints(cache_.ResumePointsOf(request.prompt_tokens(), spec.message_ends));
  AddSequence(request, std::move(kv));
  request.reservation = std::move(*reservation);
  request.restarts = std::move(*restarts);
  return true;
}

// What the cache has for `tokens`, under the Identity of a sequence of that many.
MatchResult Scheduler::Match(const Request& request, std::span<const TokenId> tokens,
                             MatchOptions options) {
  options.reuse = request.spec.reuse != Reuse::kNothing;
  NamespaceId ns = cache_.OpenNamespace(request.spec.tenant, options_.identity);
  if (options_.long_rope) {
    options.other_rope = cache_.OpenNamespace(request.spec.tenant, options_.long_rope->identity);
    if (IsLong(tokens.size())) std::swap(ns, options.other_rope);
  }
  return TimedCache([&] { return cache_.Match(ns, tokens, options); });
}

void Scheduler::AddSequence(Request& request, KvSequence kv) {
  const GenerateRequest& spec = request.spec;
  auto sequence = std::make_unique<Sequence>();
  sequence->choice = static_cast<uint32_t>(request.sequences.size());
  sequence->tokens.reserve(spec.prompt.size() + request.max_tokens);
  sequence->tokens.assign(spec.prompt.begin(), spec.prompt.end());
  sequence->kv = std::move(kv);
  sequence->long_rope = IsLong(spec.prompt.size());
  // Only choice 0 passes the logits of the prompt to on_logits.
  if (sequence->choice > 0) sequence->next_logits = request.prompt_tokens();
  if (options_.tokenizer != nullptr) {
    sequence->text.emplace(*options_.tokenizer, !spec.echo_special);
    sequence->stop.emplace(spec.stop);
  }
  request.sequences.push_back(std::move(sequence));
}

void Scheduler::ExplainMatch(Request& request, const MatchResult& match) {
  Receipt& receipt = request.receipt;
  receipt.prompt_tokens = request.prompt_tokens();
  receipt.reused_pool = match.num_pool();
  receipt.reused_partial = match.num_partial();
  receipt.computed = receipt.prompt_tokens - match.num_reused();
  receipt.ignored = request.spec.ignored;
  receipt.miss = match.miss;
  if (receipt.miss) {
    const auto& ends = request.spec.message_ends;
    const auto message = std::upper_bound(ends.begin(), ends.end(), receipt.miss->at_token);
    if (message != ends.end()) {
      receipt.miss->message_index = static_cast<uint32_t>(message - ends.begin());
    }
  }
}

}  // namespace kvasir
