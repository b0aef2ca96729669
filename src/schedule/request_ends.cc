#include "schedule/request_ends.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/clock.h"
#include "schedule/request_answer.h"
#include "schedule/request_tracing.h"

namespace kvasir {
namespace {

constexpr double kMs = 1e-6;  // of a nanosecond

}  // namespace

RequestEnds::RequestEnds(const SchedulerOptions& options, KvCache& cache, RequestQueues& requests,
                         StepFigures& figures, TenantBook& tenants, TierLoads& loads,
                         Retainer& retainer, SpanReader& spans)
    : options_(options),
      cache_(cache),
      requests_(requests),
      figures_(figures),
      tenants_(tenants),
      loads_(loads),
      retainer_(retainer),
      spans_(spans) {}

void RequestEnds::EndChoice(Request& request, Sequence& sequence, std::span<const float> hidden,
                            FinishReason reason) {
  retainer_.Note(request, sequence);
  spans_.Note(request, sequence);
  sequence.kv.Close();
  // If only the prompt is committed, its tail and Cursor are kept already.
  if (sequence.kv.num_committed() > request.prompt_tokens()) {
    figures_.TimedCache([&] { cache_.Commit(sequence.kv, 0, KvCache::CommitKind::kEnd); });
    cache_.KeepCursor(sequence.kv, hidden);
  }
  sequence.kv = KvSequence();
  sequence.retained.sums.Release();
  sequence.done = true;
  requests_.retry_admission = true;
  FinishChoice(request, sequence.choice, reason);
  if (!request.spec.only_when_idle) {
    if (request.max_tokens > 0) {  // else it only reads its prompt
      tenants_.lengths().Add(
          request.tenant, static_cast<uint32_t>(sequence.tokens.size()) - request.prompt_tokens());
    }
    figures_.AddChoice(sequence.tokens.size(), reason);
  }
  if (request.done()) Finish(request, reason);
}

// Puts the best hypotheses of a search into the events of its choices.
std::vector<BeamSearch::Hypothesis> RequestEnds::AddHypotheses(Request& request) {
  std::vector<BeamSearch::Hypothesis> best = request.answer.search->best();
  for (uint32_t choice = 0; choice < best.size(); ++choice) {
    Event& event = request.events.Of(choice);
    const auto tokens = best[choice].tokens.subspan(request.prompt_tokens());
    AddAnswer(tokens, best[choice].ended, options_.tokenizer, request.spec, event);
    event.score = best[choice].score;
    request.answer.completion_tokens += static_cast<uint32_t>(tokens.size());
    figures_.stats().generated_tokens += tokens.size();
  }
  return best;
}

void RequestEnds::EndSearch(Request& request) {
  const std::vector<BeamSearch::Hypothesis> best = AddHypotheses(request);
  ReleaseSequences(request);
  for (uint32_t choice = 0; choice < request.spec.n; ++choice) {
    const bool ended = choice < best.size() && best[choice].ended;
    const FinishReason reason = ended ? FinishReason::kStop : FinishReason::kLength;
    FinishChoice(request, choice, reason);
    if (choice >= best.size()) continue;
    const auto tokens = static_cast<uint32_t>(best[choice].tokens.size());
    figures_.AddChoice(tokens, reason);
    tenants_.lengths().Add(request.tenant, tokens - request.prompt_tokens());
  }
  Finish(request, request.events.Of(0).finish_reason);
}

// Gives back all blocks of its choices.
void RequestEnds::ReleaseSequences(Request& request) {
  request.answer.unused_beams.clear();
  for (const auto& sequence : request.answer.sequences) {
    if (!sequence->done) retainer_.Note(request, *sequence);
    if (!sequence->done) spans_.Note(request, *sequence);
    sequence->kv = KvSequence();
    sequence->retained.sums.Release();
    sequence->format_choice.reset();
    sequence->done = true;
  }
  requests_.retry_admission = true;
}

void RequestEnds::End(Request& request, FinishReason reason, const Error* error) {
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
  Finish(request, reason);
}

void RequestEnds::Finish(Request& request, FinishReason reason) {
  loads_.End(request);
  request.spans.Stop();
  request.room.reservation.Release();
  has_erased_ |= request.is_erased;
  const uint64_t now = MonotonicNs();
  const uint64_t first = request.times.first_token_ns == 0 ? now : request.times.first_token_ns;
  request.times.parts.Enter(FirstTokenTime::State::kDone, now, figures_.cache_ns());
  Receipt& receipt = request.receipt;
  if (request.times.admitted_ns == 0) {  // never ran
    receipt.prompt_tokens = receipt.computed = request.prompt_tokens();
    receipt.ignored = request.spec.ignored;
    receipt.clock_in_prompt = request.spec.clock_in_prompt;
  }
  Retainer::FillReceipt(request);
  spans_.FillReceipt(request);
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

void RequestEnds::EndPastDeadline() {
  const uint64_t now = MonotonicNs();
  const auto is_past = [&](const auto& request) {
    return !request->done() && now >= request->times.deadline_ns;
  };
  const auto end = [&](Request& request) {
    request.times.past_deadline = true;
    if (request.times.first_token_ns != 0) {
      End(request, FinishReason::kLength, nullptr);
      return;
    }
    const Error error{
        Code::kDeadlineExceeded,
        fmt::format("the time limit of {} ms passed {}", *request.spec.timeout_ms,
                    request.times.admitted_ns == 0 ? "while the request waited for its turn"
                                                   : "while its prompt was computed")};
    Fail(request, error);
  };
  for (auto it = requests_.waiting.begin(); it != requests_.waiting.end();) {
    if (!is_past(*it)) {
      ++it;
      continue;
    }
    end(**it);
    requests_.ended.push_back(std::move(*it));
    it = requests_.waiting.erase(it);
  }
  for (const auto& request : requests_.running) {
    if (is_past(request)) end(*request);
  }
  requests_.CollectEnded();
}

void RequestEnds::Cancel(RequestId id) {
  const auto is = [&](const auto& request) { return request->id == id; };
  const auto waiting = std::find_if(requests_.waiting.begin(), requests_.waiting.end(), is);
  if (waiting != requests_.waiting.end()) {
    End(**waiting, FinishReason::kCancelled, nullptr);
    requests_.ended.push_back(std::move(*waiting));
    requests_.waiting.erase(waiting);
    return;
  }
  const auto spare = std::find_if(requests_.spare.begin(), requests_.spare.end(), is);
  if (spare != requests_.spare.end()) {
    End(**spare, FinishReason::kCancelled, nullptr);
    requests_.ended.push_back(std::move(*spare));
    requests_.spare.erase(spare);
    return;
  }
  const auto running = std::find_if(requests_.running.begin(), requests_.running.end(), is);
  if (running != requests_.running.end() && !(*running)->done()) {
    End(**running, FinishReason::kCancelled, nullptr);
  }
}

void RequestEnds::StopSpare(Spare which) {
  const auto end = [&](std::deque<std::unique_ptr<Request>>& requests) {
    std::erase_if(requests, [&](std::unique_ptr<Request>& request) {
      if (!request->spec.only_when_idle) return false;
      requests_.ended.reserve(requests_.ended.size() + 1);
      End(*request, FinishReason::kCancelled, nullptr);
      requests_.ended.push_back(std::move(request));
      return true;
    });
  };
  for (const auto& request : requests_.running) {
    if (request->spec.only_when_idle && !request->done()) {
      End(*request, FinishReason::kCancelled, nullptr);
    }
  }
  end(requests_.waiting);
  if (which == Spare::kAll) end(requests_.spare);
}

void RequestEnds::CancelAll() {
  StopSpare(Spare::kAll);
  while (!requests_.waiting.empty()) Cancel(requests_.waiting.front()->id);
  for (const auto& request : requests_.running) {
    if (!request->done()) End(*request, FinishReason::kCancelled, nullptr);
  }
}

void RequestEnds::FailAll(const Error& error) {
  StopSpare(Spare::kAll);
  for (; !requests_.waiting.empty(); requests_.waiting.pop_front()) {
    if (!requests_.waiting.front()->done()) Fail(*requests_.waiting.front(), error);
    requests_.ended.push_back(std::move(requests_.waiting.front()));
  }
  for (const auto& request : requests_.running) {
    if (!request->done()) Fail(*request, error);
  }
}

void RequestEnds::FailWalks(std::span<Request* const> requests) {
  static const Error kErased{Code::kUnavailable,
                             "what was asked was erased while it was found out which tokens the "
                             "format allows next; ask again"};
  for (Request* const request : requests) {
    const bool waits = std::ranges::any_of(request->answer.sequences,
                                           [](const auto& one) { return one->waits_for_format(); });
    if (waits && !request->done()) Fail(*request, kErased);
  }
}

void RequestEnds::CheckFiles() {
  constexpr uint64_t kPeriodNs = 100'000'000;
  if (options_.files == nullptr || (requests_.waiting.empty() && requests_.running.empty())) return;
  const uint64_t now = MonotonicNs();
  if (requests_.waiting.empty() && now - files_checked_ns_ < kPeriodNs) return;
  files_checked_ns_ = now;
  if (const Status files = options_.files->CheckAll(); !files) FailAll(files.error());
  requests_.CollectEnded();
}

void RequestEnds::CheckStepFiles() {
  if (options_.files == nullptr) return;
  if (const Status files = options_.files->CheckStep(); !files) FailAll(files.error());
}

RequestEnds::Delivered RequestEnds::Deliver() {
  const auto send = [this](Request& request) {
    return request.events.Send([&](Event& event, bool is_first) {
      event.receipt = request.receipt;
      event.completion_tokens = request.answer.completion_tokens;
      event.prefilled_tokens = std::min(request.answer.prefilled_tokens, request.receipt.computed);
      if (on_end_ && is_first) on_end_(request);
    });
  };
  Delivered ended;
  for (const auto& request : requests_.running) send(*request);
  std::erase_if(requests_.ended, [&](const std::unique_ptr<Request>& request) {
    if (!send(*request)) return false;
    DeliverTrace(*request);
    ++ended.count;
    ended.bytes += request->bytes;
    return true;
  });
  return ended;
}

}  // namespace kvasir
