// SchedulerParts: the parts of a scheduler without it, for tests of single parts.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "schedule/match_receipt.h"
#include "schedule/request_answer.h"
#include "schedule/request_check.h"
#include "schedule/request_limits_for_test.h"
#include "schedule/step_draws.h"
#include "testing/small_runner_for_test.h"

namespace kvasir {

struct SchedulerParts {
  static constexpr uint32_t kParallel = 4;

  explicit SchedulerParts(SchedulerOptions changed = {}) : options(std::move(changed)) {
    options.parallel = kParallel;
    options.max_rows = kSmallRows;
    options.num_tenants = 4;
  }

  // Returns a request that is greedy.
  static GenerateRequest Spec(std::vector<TokenId> prompt, uint32_t max_tokens) {
    GenerateRequest spec;
    spec.prompt = std::move(prompt);
    spec.max_tokens = max_tokens;
    spec.sampling.temperature = 0;
    spec.ignore_eos = true;
    spec.reuse = Reuse::kBlocks;
    return spec;
  }
  // Makes a request wait. What its sink gets is in `events`.
  Request& Wait(GenerateRequest spec) {
    auto request = CheckRequest(
        std::move(spec), [this](const Event& event) { events.push_back(event); },
        LimitsFor(*cache, kSmallContext, kSmallVocab, kParallel));
    KV_CHECK(request);
    (*request)->id = RequestId{++last_id};
    (*request)->times.submitted_ns = MonotonicNs();
    (*request)->events.Begin((*request)->spec.n, 1 + kMaxDraft);
    requests.waiting.push_back(std::move(*request));
    return *requests.waiting.back();
  }
  // Makes a request run, with room for all of its tokens.
  Request& Run(GenerateRequest spec) {
    Request& request = Wait(std::move(spec));
    MatchResult match = matcher.Match(request, request.spec.prompt, /*is_long=*/false, {});
    KvDemand demand = request.room.demand;
    demand.beside_blocks = 0;  // of spans, which reserve them
    request.room.reservation = *cache->Reserve(match, demand);
    request.room.reserved_tokens = demand.tokens;
    request.spans.parts = *spans.Reserve(request, match);
    request.times.admitted_ns = MonotonicNs();
    ExplainMatch(request, match);
    AddSequence(request,
                cache->Fetch(std::move(match), request.prompt_tokens() + request.max_tokens,
                             request.room.reservation),
                nullptr);
    requests.Admit(requests.waiting.size() - 1);
    return request;
  }

  // Makes a step of the next tokens of a sequence and commits them; `drafted`: so many of its
  // draft's too, which are not committed.
  void Compute(Request& request, Sequence& sequence, uint32_t num_rows, uint32_t drafted = 0) {
    batch.Clear();
    batch.Add({.request = &request,
               .sequence = &sequence,
               .first_row = 0,
               .num_rows = num_rows + drafted,
               .position = sequence.kv.num_committed(),
               .source_rows = 0,
               .decodes = request.answer.prompt_done,
               .num_drafted = drafted,
               .is_span = &sequence == request.spans.reading()},
              /*kv_bytes=*/0);
    StepBatch::Rows& rows = batch.rows()[0];
    KV_CHECK(
        cache->Extend(sequence.kv, std::span(sequence.tokens).subspan(rows.position, num_rows)));
    if (drafted > 0) drafts.Extend(rows);
    retainer.TakeSums(rows);
    batch.AddRows(rows, /*shift=*/0);
    KV_CHECK(batch.Compute());
    if (rows.is_span) return spans.CommitRows(rows);
    if (drafted == 0) cache->Commit(sequence.kv, num_rows, KvCache::CommitKind::kRunning);
  }
  // Computes the prompt of a request up to so many tokens.
  void ComputePrompt(Request& request, uint32_t end) {
    Sequence& sequence = *request.answer.sequences[0];
    while (sequence.kv.num_committed() < end) {
      Compute(request, sequence, std::min(kSmallRows, end - sequence.kv.num_committed()));
    }
    request.answer.prompt_done = end == request.prompt_tokens();
  }

  SchedulerOptions options;
  FakeRunner runner{SmallRunnerOptions()};
  const std::unique_ptr<KvCache> cache = SmallCache(runner);
  StepFigures figures{0};
  TenantBook tenants{*cache, figures.stats().tenants, options.num_tenants, 10};
  TokenChooser chooser{runner, kParallel, options.end_tokens};
  DraftBook drafts{options, *cache, figures, runner, chooser, tenants};
  Retainer retainer{*cache, figures, options.heavy_context, kParallel};
  TierLoads loads{runner, *cache, nullptr, figures, kSmallRows};
  RequestQueues requests;
  RequestMatcher matcher{options, *cache, tenants, figures};
  SpanReader spans{*cache, requests, matcher, loads, figures};
  RequestEnds ends{options, *cache, requests, figures, tenants, loads, retainer, spans};
  StepBatch batch{runner, runner.layout(), kSmallRows, kParallel};
  StepDraws draws{runner, *cache, options, requests, figures, tenants, chooser, drafts, ends};
  std::vector<Event> events;
  uint64_t last_id = 0;
};

}  // namespace kvasir
