// Beam search: each beam at hand is a sequence of its request. All are computed in one step, and
// the search says which of them go on.
#include <algorithm>

#include "base/check.h"
#include "base/clock.h"
#include "schedule/scheduler.h"

namespace kvasir {

// The tokens of the prompt behind the first one have log probability 0.
void Scheduler::BeginSearch(Request& request) const {
  const GenerateRequest& spec = request.spec;
  const uint32_t forced = request.prompt_tokens() - 1;
  BeamOptions options{.beams = spec.beams->beams,
                      .hypotheses = spec.n,
                      .length_penalty = spec.beams->length_penalty,
                      .early_stopping = spec.beams->early_stopping,
                      .min_tokens = spec.min_tokens + forced,
                      .max_tokens = request.max_tokens + forced,
                      .no_repeat_ngram_size = spec.no_repeat_ngram_size,
                      .repetition_penalty = spec.sampling.repetition_penalty,
                      .start = spec.prompt[0],
                      .forced = std::nullopt,
                      .ends = spec.stop_ids};
  if (!spec.ignore_eos) {
    options.ends.insert(options.ends.end(), options_.end_tokens.begin(), options_.end_tokens.end());
  }
  if (forced > 0) options.forced = spec.prompt[1];
  request.search = std::make_unique<BeamSearch>(options);
  request.sequences.reserve(kMaxBeams);
  request.unused_beams.reserve(kMaxBeams);
  if (forced > 0) request.search->Advance({});
}

// Heads from `begin` on whose logits are computed together: the beams of a search are.
size_t Scheduler::HeadsAtOnce(size_t begin) const {
  size_t end = std::min<size_t>(begin + options_.logit_rows, heads_.size());
  const auto is_between_beams = [&] {
    return end < heads_.size() && heads_[end].request->search && heads_[end].sample &&
           heads_[end - 1].sample && heads_[end].request == heads_[end - 1].request;
  };
  while (is_between_beams()) --end;
  return end - begin;
}

// `row`: of the logits at hand.
void Scheduler::AddBeam(const Head& head, uint32_t row) {
  if (head.request->done() || !head.sample) return;
  if (beam_steps_.empty() || beam_steps_.back().request != head.request) {
    beam_steps_.push_back({.request = head.request, .first_row = row});
  }
  ++beam_steps_.back().num_rows;
}

void Scheduler::RunBeams() {
  if (beam_steps_.empty()) return;
  const uint32_t end = beam_steps_.back().first_row + beam_steps_.back().num_rows;
  // Rows of other requests between them too, which are few.
  runner_.ForEach(end - beam_steps_.front().first_row, [this](uint32_t i) {
    const uint32_t row = beam_steps_.front().first_row + i;
    beam_rows_[row].Read(LogitsAt(row), ExpSumFor(options_.target));
  });
  runner_.ForEach(static_cast<uint32_t>(beam_steps_.size()), [this](uint32_t i) {
    BeamStep& step = beam_steps_[i];
    const auto rows = std::span(beam_rows_).subspan(step.first_row, step.num_rows);
    step.finite = std::ranges::all_of(rows, &LogitRow::finite);
    if (step.finite) step.request->search->Advance(rows);
  });
}

void Scheduler::UseBeams(const BeamStep& step) {
  Request& request = *step.request;
  if (request.done()) return;
  if (!step.finite) {
    const Error error{Code::kCorruption, "model: a logit is not finite"};
    return EndRequest(request, FinishReason::kError, &error);
  }
  NoteToken(request, request.last_token_ns);
  BeamSearch& search = *request.search;
  request.longest_answer = search.length() + 1 - request.prompt_tokens();
  // A quota may have been lowered since the search began.
  if (!search.done() && request.longest_answer >= request.max_tokens) search.End();
  if (!search.done()) {
    const Status followed = figures_.TimedCache([&] { return FollowBeams(request); });
    if (!followed) EndRequest(request, FinishReason::kError, &followed.error());
    return;
  }
  EndSearch(request, AddHypotheses(request));
}

// Makes the request's sequences those of the beams that go on. The first one that goes on from a
// beam has its sequence; others become forks of that, in the memory of those that were dropped.
Status Scheduler::FollowBeams(Request& request) {
  const std::span<const BeamSearch::Beam> beams = request.search->beams();
  const uint32_t most = request.prompt_tokens() + request.max_tokens;
  auto& sequences = request.sequences;
  auto& unused = request.unused_beams;
  next_beams_.clear();
  next_beams_.resize(beams.size());
  const auto first_of = [&](size_t beam) {
    const auto same = [&](const auto& other) { return other.parent == beams[beam].parent; };
    return static_cast<size_t>(std::ranges::find_if(beams, same) - beams.begin());
  };
  for (size_t i = 0; i < beams.size(); ++i) {
    if (first_of(i) == i) next_beams_[i] = std::move(sequences[beams[i].parent]);
  }
  std::erase(sequences, nullptr);
  for (auto& dropped : sequences) unused.push_back(std::move(dropped));
  sequences.clear();
  Status status;
  for (size_t i = 0; i < beams.size(); ++i) {
    if (!next_beams_[i]) {
      const KvSequence& parent = next_beams_[first_of(i)]->kv;
      if (unused.empty()) {
        AddSequence(request, cache_.Fork(parent, most));
        next_beams_[i] = std::move(sequences.back());
        sequences.pop_back();
      } else {
        next_beams_[i] = std::move(unused.back());
        unused.pop_back();
        const Status forked = cache_.ForkInto(next_beams_[i]->kv, parent);
        if (!forked) status = forked;
      }
    }
    const std::span<const TokenId> tokens = request.search->tokens(static_cast<uint32_t>(i));
    next_beams_[i]->tokens.assign(tokens.begin(), tokens.end());
  }
  std::swap(sequences, next_beams_);
  next_beams_.clear();
  for (uint32_t i = 0; i < sequences.size(); ++i) sequences[i]->choice = i;
  // Those that were dropped and have no successor yet.
  for (const auto& sequence : unused) KV_CHECK(cache_.Truncate(sequence->kv, 0));
  return status;
}

// Into the events of its choices.
std::vector<BeamSearch::Hypothesis> Scheduler::AddHypotheses(Request& request) {
  std::vector<BeamSearch::Hypothesis> best = request.search->best();
  for (uint32_t choice = 0; choice < best.size(); ++choice) {
    Event& event = EventOf(request, choice);
    const auto tokens = best[choice].tokens.subspan(request.prompt_tokens());
    AddAnswer(tokens, best[choice].ended, options_.tokenizer, request.spec, event);
    event.score = best[choice].score;
    request.completion_tokens += static_cast<uint32_t>(tokens.size());
    figures_.stats().generated_tokens += tokens.size();
  }
  return best;
}

void Scheduler::EndSearch(Request& request, std::span<const BeamSearch::Hypothesis> best) {
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
  FinishRequest(request, request.events[0].finish_reason);
}

}  // namespace kvasir
