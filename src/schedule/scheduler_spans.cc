// Spans: when the parts of a prompt are read, and what is counted of them.
#include <algorithm>
#include <utility>

#include "base/fault.h"
#include "base/result.h"
#include "schedule/scheduler.h"

namespace kvasir {
namespace {

constexpr MatchOptions kOfPart{
    .use_cursor = false, .use_tier = false, .counts = false, .computes_last = false};

std::unique_ptr<SpanPart> NewPart(const Request& request, const SpanPlan::Part& part) {
  const std::span<const TokenId> prompt = request.spec.prompt;
  const auto head = prompt.first(request.spans.plan->head());
  const auto span = prompt.subspan(part.begin, part.end - part.begin);
  auto made = std::make_unique<SpanPart>();
  made->sequence.tokens.reserve(head.size() + span.size());
  made->sequence.tokens.assign(head.begin(), head.end());
  made->sequence.tokens.insert(made->sequence.tokens.end(), span.begin(), span.end());
  return made;
}

}  // namespace

// Makes the parts of a request that is about to start, and reserves what they need. Where its head
// is here, what is here of the parts stays. `match`: of its first sequence.
Result<std::vector<std::unique_ptr<SpanPart>>> Scheduler::ReserveSpans(Request& request,
                                                                       const MatchResult& match) {
  std::vector<std::unique_ptr<SpanPart>> parts;
  if (!request.spans.plan) return parts;
  const uint32_t head = request.spans.plan->head(), block_tokens = cache_.layout().block_tokens();
  const bool has_head = match.num_reused() >= head / block_tokens * block_tokens;
  for (const SpanPlan::Part& part : request.spans.plan->parts()) {
    parts.push_back(NewPart(request, part));
    SpanPart& made = *parts.back();
    const auto size = static_cast<uint32_t>(made.sequence.tokens.size());
    if (!has_head) {
      KV_ASSIGN(made.reservation, cache_.ReserveAfter(request.room.account, head, size));
      continue;
    }
    MatchResult found = MatchText(request, made.sequence.tokens, false, kOfPart);
    if (found.num_reused() < size) {
      KV_ASSIGN(made.reservation, cache_.Reserve(found, {.prompt_tokens = size, .tokens = size}));
    }
    made.sequence.kv = cache_.Fetch(std::move(found), size);
  }
  return parts;
}

// Goes on with the parts of a request whose first sequence has its exact tokens: one after the
// other is begun and computed; then the sequence passes over what it reads of them. Returns false
// where blocks are missing: until then the request must not go on.
bool Scheduler::ReadSpans(Request& request) {
  SpanState& spans = request.spans;
  if (spans.parts.empty() || request.done()) return true;
  Sequence& first = *request.answer.first_live();
  if (first.kv.tables().empty() || !spans.plan->IsInexact(first.kv.num_committed())) return true;
  if (first.kv.publishes()) {
    // What comes before is exact: its last tokens can be found too.
    figures_.TimedCache([&] { cache_.Commit(first.kv, 0, KvCache::CommitKind::kEnd); });
    first.kv.StopPublishing();
  }
  if (!spans.is_reading) loads_.End(request);
  while (spans.num_read < spans.parts.size()) {
    if (!spans.is_reading && !BeginPart(request, first)) return false;
    if (spans.reading()->num_pending() > 0) return true;
    EndPart(request);
  }
  for (uint32_t i = 0; i < spans.parts.size(); ++i) {
    const SpanPlan::Part& part = spans.plan->parts()[i];
    if (first.kv.num_committed() != part.read_begin) continue;
    const auto read = std::span(request.spec.prompt).subspan(part.read_begin, part.read_tokens());
    if (!cache_.ReadIn(first.kv, spans.parts[i]->sequence.kv, read, part.shift)) return false;
  }
  return true;
}

// Matches the next part again, since more of it may be here now; else it begins with the head that
// the request's first sequence has. Returns false where blocks are missing.
bool Scheduler::BeginPart(Request& request, const Sequence& first) {
  SpanState& spans = request.spans;
  SpanPart& part = *spans.parts[spans.num_read];
  const auto size = static_cast<uint32_t>(part.sequence.tokens.size());
  KvSequence& kv = part.sequence.kv;
  if (!kv.tables().empty() && kv.num_committed() == size) return spans.is_reading = true;
  part.reservation.Release();
  {
    MatchOptions options = kOfPart;
    options.use_tier = request.spec.use_disk && !request.wait.skips_tier;
    options.remote = request.spec.use_remote;
    MatchResult match = MatchText(request, part.sequence.tokens, false, options);
    const uint32_t block_tokens = cache_.layout().block_tokens();
    const uint32_t whole_head = spans.plan->head() / block_tokens * block_tokens;
    auto reserved = match.num_reused() < whole_head
                        ? Result<Reservation>(Fail(Code::kNotFound, "the head is not here"))
                        : cache_.Reserve(match, {.prompt_tokens = size, .tokens = size});
    if (reserved) {
      const uint32_t num_offered = match.num_offered();
      KvLoad load = cache_.TakeOffer(match);
      kv = figures_.TimedCache([&] { return cache_.Fetch(std::move(match), size, *reserved); });
      part.reservation = std::move(*reserved);
      spans.is_reading = true;
      loads_.Start(request, std::move(load), num_offered);
      return true;
    }
  }
  auto reserved = cache_.ReserveAfter(request.room.account, spans.plan->head(), size);
  if (!reserved) {
    request.room.over_quota = CountRefusal(reserved.error());
    return false;
  }
  kv = figures_.TimedCache(
      [&] { return cache_.Branch(first.kv, spans.plan->head(), size, *reserved); });
  part.reservation = std::move(*reserved);
  return spans.is_reading = true;
}

// Publishes the part that is computed, and says what later tokens see of it.
void Scheduler::EndPart(Request& request) {
  loads_.End(request);
  SpanState& spans = request.spans;
  const SpanPlan::Part& plan = spans.plan->parts()[spans.num_read];
  SpanPart& part = *spans.parts[spans.num_read];
  part.sequence.kv.Close();
  figures_.TimedCache([&] { cache_.Commit(part.sequence.kv, 0, KvCache::CommitKind::kEnd); });
  part.reservation.Release();
  if (spans.num_read == spans.num_counted) CountPart(request, plan, part);
  const uint32_t begin = spans.num_read == 0 ? 0 : spans.plan->parts()[spans.num_read - 1].read_end;
  spans.runs_before.push_back(static_cast<uint32_t>(spans.runs.size()));
  if (begin < plan.read_begin) {
    spans.runs.push_back({.tables = {}, .first = begin, .last = plan.read_begin});
  }
  const bool is_loose = FaultActive(Fault::kLooseSpan) && part.computed == 0;
  spans.runs.push_back({.tables = part.sequence.kv.tables(),
                        .first = plan.read_begin - plan.shift,
                        .last = plan.read_end - plan.shift,
                        .shift = is_loose ? 0 : plan.shift});
  spans.is_reading = false;
  ++spans.num_read;
}

// Commits the rows of a part that a step computed.
void Scheduler::CommitSpanRows(const StepBatch::Rows& rows) {
  Request& request = *rows.request;
  SpanPart& part = *request.spans.parts[request.spans.num_read];
  const SpanPlan::Part& plan = request.spans.plan->parts()[request.spans.num_read];
  figures_.TimedCache(
      [&] { cache_.Commit(rows.sequence->kv, rows.num_rows, KvCache::CommitKind::kRunning); });
  const uint32_t begin = std::max(rows.position, plan.read_begin - plan.shift);
  const uint32_t end = std::min(rows.position + rows.num_rows, plan.read_end - plan.shift);
  const uint32_t computed = std::max(begin, end) - begin;
  part.computed += computed;
  if (request.spans.num_read == request.spans.num_counted) {
    // (After a preemption some of it may be computed again.)
    uint32_t& of_next = request.spans.computed_of_next;
    of_next = std::min(plan.read_tokens(), of_next + computed);
  }
  request.answer.prefilled_tokens += rows.num_rows;
  if (request.spec.only_when_idle) figures_.stats().prepared_tokens += rows.num_rows;
}

// Writes into the receipt where the tokens that are read of a part came from.
void Scheduler::CountPart(Request& request, const SpanPlan::Part& plan, const SpanPart& part) {
  ++request.spans.num_counted;
  const uint32_t computed = std::exchange(request.spans.computed_of_next, 0);
  request.spans.computed_tokens += computed;
  const uint32_t reused = plan.read_tokens() - computed;
  const uint32_t disk = std::min(reused, part.from_disk);
  const uint32_t remote = std::min(reused - disk, part.from_remote);
  Receipt& receipt = request.receipt;
  receipt.reused_disk += disk;
  receipt.reused_remote += remote;
  receipt.reused_pool += reused - disk - remote;
  receipt.computed = receipt.prompt_tokens - receipt.cached_tokens();
  request.spans.reused_tokens += reused;
  if (!request.spec.only_when_idle) cache_.CountReused(reused - disk - remote, disk, remote);
}

// Gives the parts of a request that is preempted back; what they have can be found again.
void Scheduler::StopSpans(Request& request) {
  for (const auto& part : request.spans.parts) {
    if (part->sequence.kv.tables().empty()) continue;
    part->sequence.kv.Close();
    figures_.TimedCache([&] { cache_.Commit(part->sequence.kv, 0, KvCache::CommitKind::kEnd); });
  }
  request.spans.Stop();
}

// Counts the tokens of a choice that ends and did not see all before them as it stands.
void Scheduler::NoteSpans(Request& request, const Sequence& sequence) {
  if (!request.spans.plan) return;
  const uint32_t tokens = std::max(sequence.num_computed, sequence.kv.num_committed());
  request.spans.reached = std::max(request.spans.reached, tokens);
  if (request.spec.only_when_idle) return;
  const uint32_t exact = std::min(tokens, request.exact_end());
  figures_.stats().spans_inexact += tokens - exact - request.spans.plan->ReadBefore(tokens);
}

// Writes into the receipt what became of the spans, as far as the request came.
void Scheduler::FillSpans(Request& request) {
  if (!request.spans.plan) return;
  const SpanPlan& plan = *request.spans.plan;
  SpansReceipt& receipt = request.receipt.spans.emplace();
  receipt.count = static_cast<uint32_t>(plan.choice().spans.size());
  receipt.reused_tokens = request.spans.reused_tokens;
  receipt.computed_tokens = request.spans.computed_tokens + request.spans.computed_of_next;
  // The request's first tokens that were there, and all tokens that it came to.
  const uint32_t begun = request.receipt.cached_tokens() - request.spans.reused_tokens;
  const uint32_t reached = std::max(request.spans.reached, begun);
  const auto tokens_of = [](uint32_t begin, uint32_t end, uint32_t before) {
    return std::clamp(before, begin, end) - begin;
  };
  for (const SpanPlan::Part& part : plan.parts()) {
    receipt.seam_tokens += tokens_of(part.begin, part.read_begin, reached) +
                           tokens_of(part.read_end, part.end, reached);
  }
  // The others are ordinary text at the prompt's beginning, or computed in their place.
  for (const auto& [begin, end] : plan.choice().spans) {
    const bool is_plain = end - begin < kMinSpanTokens;
    receipt.plain += is_plain;
    const bool is_part = std::ranges::count(plan.parts(), begin, &SpanPlan::Part::begin) > 0;
    if (is_part || is_plain) continue;
    const uint32_t reused = tokens_of(begin, end, begun);
    receipt.reused_tokens += reused;
    receipt.computed_tokens += tokens_of(begin, end, reached) - reused;
  }
  if (!plan.parts().empty()) receipt.inexact_from = plan.inexact_from();
  if (request.spec.only_when_idle) return;
  EngineStats& stats = figures_.stats();
  stats.span_reused_tokens += receipt.reused_tokens;
  stats.span_computed_tokens += receipt.computed_tokens;
  stats.span_seam_tokens += receipt.seam_tokens;
}

}  // namespace kvasir
