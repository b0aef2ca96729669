#include "schedule/span_reader.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/fault.h"
#include "base/result.h"

namespace kvasir {
namespace {

constexpr MatchOptions kOfPart{
    .use_cursor = false, .use_tier = false, .counts = false, .computes_last = false};

}  // namespace

Result<std::vector<std::unique_ptr<SpanPart>>> SpanReader::Reserve(Request& request,
                                                                   const MatchResult& match) {
  std::vector<std::unique_ptr<SpanPart>> parts;
  SpanState& spans = request.spans;
  if (!spans.plan) return parts;
  const uint32_t available = cache_.accounts().available(request.room.account);
  if (spans.refusal && available < spans.refusal->least_blocks && !requests_.running.empty()) {
    return tl::unexpected(spans.refusal->error);
  }
  spans.refusal.reset();
  const uint32_t head = spans.plan->head(), block_tokens = cache_.layout().block_tokens();
  const bool has_head = match.num_reused() >= head / block_tokens * block_tokens;
  std::vector<MatchResult> unused;  // pins that the parts after them would have too
  for (const SpanPlan::Part& part : spans.plan->parts()) {
    parts.push_back(std::make_unique<SpanPart>());
    const uint32_t left = cache_.accounts().available(request.room.account);
    uint32_t needed = 0;
    const Status reserved = ReservePart(request, *parts.back(), part, has_head, unused, &needed);
    if (!reserved && !spans.refusal) spans.refusal = {reserved.error(), available - left};
    if (spans.refusal) spans.refusal->least_blocks += needed;
  }
  if (spans.refusal) return tl::unexpected(spans.refusal->error);
  return parts;
}

// Reserves what one part needs, or counts it after a refusal. kExhausted, with the blocks that it
// needs at least beside those that others pin; what is here of it is in `unused` then.
Status SpanReader::ReservePart(Request& request, SpanPart& part, const SpanPlan::Part& plan,
                               bool has_head, std::vector<MatchResult>& unused, uint32_t* needed) {
  const auto available = [&] { return cache_.accounts().available(request.room.account); };
  const SpanPlan& spans = *request.spans.plan;
  const std::optional<SpanRefusal>& refusal = request.spans.refusal;
  const uint32_t block_tokens = cache_.layout().block_tokens(), size = spans.TokensOf(plan);
  const uint32_t num_full = cache_.layout().num_full_groups();
  part.sequence.tokens = spans.TextOf(plan, request.spec.prompt);
  if (!has_head) {
    *needed = static_cast<uint32_t>(spans.BlocksOf(plan, block_tokens)) * num_full;
    if (refusal) return {};
    KV_ASSIGN(part.reservation, cache_.ReserveAfter(request.room.account, spans.head(), size));
    return {};
  }
  const uint32_t before = available();
  ++num_matches_;
  MatchResult found = matcher_.MatchText(request, part.sequence.tokens, false, kOfPart);
  Status reserved;
  if (found.num_reused() < size) {
    // (Of a tail that is used in part it may do without the pin.)
    const uint32_t whole = found.num_reused() / block_tokens;
    *needed = (static_cast<uint32_t>(CeilDiv(size, block_tokens)) - whole) * num_full;
    if (found.num_reused() % block_tokens != 0) *needed -= num_full;
    if (!refusal) {
      auto made = cache_.Reserve(found, {.prompt_tokens = size, .tokens = size});
      if (made) {
        part.reservation = std::move(*made);
      } else {
        reserved = tl::unexpected(made.error());
      }
    }
  }
  if (!reserved || refusal) {
    *needed += before - available();
    unused.push_back(std::move(found));
    return reserved;
  }
  part.sequence.kv = cache_.Fetch(std::move(found), size, part.reservation);
  return {};
}

void SpanReader::Retry() {
  for (const auto& request : requests_.waiting) request->spans.refusal.reset();
}

bool SpanReader::Read(Request& request) {
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
    if (!spans.is_reading) BeginPart(request, first);
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

// Begins the next part. More of it may be here than when its blocks were reserved; else it goes on
// with what was here then, or with the head that the request's first sequence has.
void SpanReader::BeginPart(Request& request, const Sequence& first) {
  SpanState& spans = request.spans;
  spans.is_reading = true;
  SpanPart& part = *spans.parts[spans.num_read];
  const auto size = static_cast<uint32_t>(part.sequence.tokens.size());
  KvSequence& kv = part.sequence.kv;
  const bool has_blocks = !kv.tables().empty();
  if (has_blocks && kv.num_committed() == size) return;
  if (MatchPart(request, part, has_blocks ? kv.num_committed() : spans.plan->head())) return;
  if (has_blocks) return;
  kv = figures_.TimedCache(
      [&] { return cache_.Branch(first.kv, spans.plan->head(), size, part.reservation); });
}

// Takes what the cache and the tier have of a part, if that is its head and `least` tokens or more.
// What is reserved for the part stays reserved in any case.
bool SpanReader::MatchPart(Request& request, SpanPart& part, uint32_t least) {
  const auto size = static_cast<uint32_t>(part.sequence.tokens.size());
  const uint32_t block_tokens = cache_.layout().block_tokens();
  const uint32_t whole_head = request.spans.plan->head() / block_tokens * block_tokens;
  MatchOptions options = kOfPart;
  options.use_tier = request.spec.use_disk && !request.wait.skips_tier;
  options.remote = request.spec.use_remote;
  part.reservation.Lend();
  ++num_matches_;
  {
    MatchResult match = matcher_.MatchText(request, part.sequence.tokens, false, options);
    const uint32_t num_offered = match.num_offered();
    if (match.num_reused() >= whole_head && match.num_reused() + num_offered >= least) {
      auto reserved = cache_.ReserveLent(match, {.prompt_tokens = size, .tokens = size});
      if (reserved) {
        KvLoad load = cache_.TakeOffer(match);
        part.sequence.kv =
            figures_.TimedCache([&] { return cache_.Fetch(std::move(match), size, *reserved); });
        part.reservation = std::move(*reserved);
        loads_.Start(request, std::move(load), num_offered);
        return true;
      }
    }
  }
  part.reservation.EndLoan();
  return false;
}

// Publishes the part that is computed, and says what later tokens see of it.
void SpanReader::EndPart(Request& request) {
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
  Retry();
}

void SpanReader::CommitRows(const StepBatch::Rows& rows) {
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
void SpanReader::CountPart(Request& request, const SpanPlan::Part& plan, const SpanPart& part) {
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

void SpanReader::Stop(Request& request) {
  for (const auto& part : request.spans.parts) {
    if (part->sequence.kv.tables().empty()) continue;
    part->sequence.kv.Close();
    figures_.TimedCache([&] { cache_.Commit(part->sequence.kv, 0, KvCache::CommitKind::kEnd); });
  }
  request.spans.Stop();
}

void SpanReader::Note(Request& request, const Sequence& sequence) {
  if (!request.spans.plan) return;
  const uint32_t tokens = std::max(sequence.num_computed, sequence.kv.num_committed());
  request.spans.reached = std::max(request.spans.reached, tokens);
  if (request.spec.only_when_idle) return;
  const uint32_t exact = std::min(tokens, request.exact_end());
  figures_.stats().spans_inexact += tokens - exact - request.spans.plan->ReadBefore(tokens);
}

void SpanReader::FillReceipt(Request& request) {
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
