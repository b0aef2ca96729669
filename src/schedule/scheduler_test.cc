// Random schedules over a FakeRunner and an OwnClock. Every answer depends on its own tokens alone,
// whatever else shared a step, was matched, forked, evicted, erased, cancelled or timed out.
// Invariants hold after each step, and receipts have the clock's times to the nanosecond. Over 600
// lines, because one class draws the schedules and checks them.
#include "schedule/scheduler.h"

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <ranges>
#include <set>

#include "base/fault.h"
#include "base/own_clock.h"
#include "base/random.h"
#include "base/rounds_for_test.h"
#include "grammar/grammar_text.h"
#include "grammar/token_masks.h"
#include "schedule/drafts_for_test.h"
#include "schedule/request_check.h"
#include "schedule/request_tracing.h"
#include "schedule/spans_for_test.h"
#include "schedule/stats_check_for_test.h"
#include "testing/fake_runner.h"

namespace kvasir {
namespace {

constexpr uint32_t kVocab = 64;
constexpr TokenId kEndToken = 3, kNotFinite = 5;
constexpr uint32_t kContext = 96;

struct Asked {
  GenerateRequest spec;
  uint32_t max_tokens = 0;  // clipped
  std::optional<RetentionPolicy> retention;
  std::optional<SpanPlan> spans;
  std::vector<std::vector<TokenId>> answers;
  std::vector<FinishReason> reasons;
  std::optional<Error> error;
  bool cancelled = false;    // by the test
  bool erased = false;       // its tenant's cache was erased while it waited or ran
  bool expired = false;      // cancelled because its deadline had passed
  bool out_of_time = false;  // the scheduler ended an answer at its time limit
  bool refitted = false;     // quotas were changed while it waited or ran
  bool ended = false;
  Receipt receipt;
  uint32_t prefilled = 0;  // Event::prefilled_tokens
  // By the clock. A deadline of 0 means no deadline. Times of tokens and of the end are those of
  // their events; a cancelled request ends when the test cancels it.
  uint64_t submitted_ns = 0, deadline_ns = 0, end_ns = 0;
  std::optional<uint64_t> first_token_ns;
  uint64_t last_token_ns = 0;
};

// Returns what a receipt says, in whole nanoseconds.
uint64_t Ns(double ms) { return static_cast<uint64_t>(std::llround(ms * 1e6)); }

// Returns the answer of a choice, from its tokens alone. `reason` is why it ends.
std::vector<TokenId> Expected(const FakeRunner& runner, const Asked& asked, FinishReason* reason) {
  std::vector<TokenId> tokens = asked.spec.prompt;
  std::optional<FakeRunner::BoundedText> bounded;
  if (asked.retention) {
    bounded.emplace(runner, *asked.retention);
    for (const TokenId token : tokens) bounded->Append(token);
  }
  std::optional<FakeRunner::SpannedText> spanned;
  if (asked.spans) {
    spanned.emplace(runner, *asked.spans, tokens);
    for (const TokenId token : tokens) spanned->Append(token);
  }
  *reason = FinishReason::kLength;
  while (tokens.size() - asked.spec.prompt.size() < asked.max_tokens) {
    tokens.push_back(bounded   ? bounded->Next()
                     : spanned ? spanned->Next()
                               : runner.NextToken(tokens));
    if (bounded) bounded->Append(tokens.back());
    if (spanned) spanned->Append(tokens.back());
    if (!asked.spec.ignore_eos && tokens.back() == kEndToken) {
      *reason = FinishReason::kStop;
      break;
    }
    // The step that computes this token ends the request.
    if (tokens.back() == kNotFinite &&
        tokens.size() - asked.spec.prompt.size() < asked.max_tokens) {
      *reason = FinishReason::kError;
      break;
    }
  }
  return {tokens.begin() + static_cast<ptrdiff_t>(asked.spec.prompt.size()), tokens.end()};
}

class RandomSchedule {
 public:
  explicit RandomSchedule(uint64_t seed)
      : random_(seed),
        formats_(seed),
        drafts_(seed ^ 0x5eed),
        retained_(seed ^ 0x4e7a),
        spanned_(seed ^ 0x59a2),
        kept_(seed ^ 0x3a9f),
        masks_(LettersTrie(), formats_.Below(2) << 16),
        mode_(random_.Below(8) == 0   ? CacheMode::kNone
              : random_.Below(8) == 0 ? CacheMode::kSequence
                                      : CacheMode::kPrefix),
        parallel_(1 + static_cast<uint32_t>(random_.Below(5))),
        max_rows_(parallel_ + static_cast<uint32_t>(random_.Below(40))),
        long_after_(random_.Below(3) == 0 ? 1 + static_cast<uint32_t>(random_.Below(60)) : 0),
        runner_({.vocab_size = kVocab,
                 .max_positions = kContext,
                 .max_rows = max_rows_,
                 .windows = Windows(random_.Below(6)),
                 .long_after = long_after_ == 0 ? UINT32_MAX : long_after_,
                 .not_finite = kNotFinite,
                 .on_step = [this] { PassTime(); }}),
        cache_(MakeCache()),
        scheduler_(runner_, *cache_,
                   {.cache_mode = mode_,
                    .schedule = random_.Below(2) == 0 ? Schedule::kFair : Schedule::kFifo,
                    .admission = random_.Below(8) == 0 ? Admission::kFull : Admission::kExpected,
                    .kv_headroom = random_.Below(2) == 0 ? 0.05 : 0,
                    .target_step_ns = random_.Below(2) == 0 ? random_.Below(40'000'000) : 0,
                    .unknown_answer_tokens = 1 + static_cast<uint32_t>(random_.Below(30)),
                    .heavy_context = kContext,
                    .num_tenants = num_tenants_,
                    .parallel = parallel_,
                    .max_rows = max_rows_,
                    .logit_rows = 1 + static_cast<uint32_t>(random_.Below(6) + drafts_.Below(40)),
                    .long_rope = RopeSwitch(),
                    .end_tokens = {kEndToken},
                    .format_steps = formats_.Below(formats_.Below(2) == 0 ? 100 : 5000),
                    .speculate = Speculation(),
                    .draft_max = 1 + static_cast<uint32_t>(drafts_.Below(kMaxDraft)),
                    .drafts = Drafting(seed),
                    .on_plan = [this](const View& view, const StepPlan& plan) {
                      CheckPlan(view, plan);
                    }}) {}

  void Run() {
    if (random_.Below(2) == 0) SetQuotas();
    scheduler_.set_on_stats([this](const EngineStats& stats) { stats_ = stats; });
    const uint64_t num_requests = 1 + random_.Below(8);
    uint32_t idle_steps = 0;
    for (uint64_t asked = 0; asked < num_requests || !scheduler_.idle();) {
      if (asked < num_requests && (scheduler_.idle() || random_.Below(3) == 0)) {
        Ask();
        ++asked;
      }
      if (random_.Below(20) == 0 && !asked_.empty()) Cancel();
      erased_ = random_.Below(30) == 0;
      if (erased_) Erase();
      if (random_.Below(4) == 0) PassTime();
      if (!quotas_.empty() && random_.Below(200) == 0) ChangeQuotas();
      CancelExpired();
      step_start_ns_ = MonotonicNs();
      const std::map<std::string, uint32_t> held = HeldByAbsent();
      const auto queued = stats_.queued;
      scheduler_.Step();
      scheduler_.CheckInvariants();
      CheckQuotas(held);
      // Where nothing runs, the first one that waits has room. (It may end in the same step.)
      const bool waits = stats_.running == 0 && stats_.queued > 0 && stats_.queued >= queued;
      idle_steps = waits ? idle_steps + 1 : 0;
      wrong += idle_steps > kMostIdleSteps;
      if (testing::Test::HasFailure()) return;
    }
    Check();
  }

  uint64_t wrong = 0;  // choices whose answer is not the expected one
  uint64_t reused = 0, computed = 0, cancelled = 0, expired = 0, failed = 0, forked = 0;
  uint64_t preemptions = 0, by_priority = 0, recomputed = 0, late = 0, restarted = 0;
  uint64_t traces = 0, waits = 0, evicting_steps = 0, limited = 0, refits = 0;
  uint64_t whole_blocks = 0, unfinished_prompts = 0, dropped = 0;
  uint64_t spans_reused = 0, spans_computed = 0, spans_cut = 0;  // tokens; requests
  uint64_t embedded = 0, embedded_again = 0;                     // again: after a preemption
  uint64_t kept = 0;                                             // requests whose marks keep tokens
  const DraftStats& drafts() const { return stats_.drafts; }
  const CacheCounters& counters() const { return cache_->counters(); }

 private:
  static constexpr uint32_t kMostIdleSteps = 3;

  Speculate Speculation() {
    if (draft_kind_ == TestDrafts::kNone) return Speculate::kOff;
    return drafts_.Below(4) == 0 ? Speculate::kAuto : Speculate::kAlways;
  }
  decltype(SchedulerOptions::drafts) Drafting(uint64_t seed) const {
    if (draft_kind_ <= TestDrafts::kMemory) return {};
    return TestDrafter(runner_, draft_kind_, seed);
  }

  std::optional<LongRope> RopeSwitch() const {
    if (long_after_ == 0) return std::nullopt;
    return LongRope{long_after_, Identity{9}};
  }

  // [layer]: full layers alone, most often; with windows; windows alone, of two widths.
  static std::vector<uint32_t> Windows(uint64_t choice) {
    if (choice == 0) return {0, 20};
    if (choice == 1) return {17, 40, 17};
    if (choice == 2) return {0, 0, 33, 33};
    return {0};
  }

  void PassTime() { clock_.Advance(std::chrono::nanoseconds(random_.Below(40'000'000))); }

  std::unique_ptr<KvCache> MakeCache() {
    KvCacheOptions options{.layout = runner_.layout(),
                           .budget_bytes = 0,
                           .hidden_size = FakeRunner::kHidden,
                           .num_cursors = 4,
                           .num_namespaces = long_after_ == 0 ? 3u : 4u,
                           .secret = {7},
                           .step_tokens = max_rows_,
                           .reuse = mode_ == CacheMode::kPrefix,
                           .continues = draft_kind_ == TestDrafts::kMemory};
    const uint32_t num_blocks =
        static_cast<uint32_t>(3 + random_.Below(random_.Below(2) == 0 ? 24 : 10)) *
        runner_.layout().num_groups();
    options.max_blocks = num_blocks;
    options.budget_bytes = 1 << 20;
    auto cache = KvCache::Create(std::move(options));
    KV_CHECK(cache.has_value() && (*cache)->plan().num_blocks == num_blocks);
    return std::move(*cache);
  }

  std::string Tenant() { return random_.Below(3) == 0 ? "bob" : "alice"; }

  // Draws a prompt of few different tokens: so prompts share beginnings and diverge within blocks.
  std::vector<TokenId> RandomPrompt() {
    std::vector<TokenId> prompt;
    if (!asked_.empty() && random_.Below(4) != 0) {
      auto it = asked_.begin();
      std::advance(it, static_cast<ptrdiff_t>(random_.Below(asked_.size())));
      prompt = it->second.spec.prompt;
      for (const TokenId token : it->second.answers[0]) {
        if (token != kNotFinite) prompt.push_back(token);
      }
      if (random_.Below(2) == 0) prompt.resize(random_.Below(prompt.size() + 1));
    }
    const uint64_t more = random_.Below(3) == 0 ? 0 : random_.Below(30);
    for (uint64_t i = 0; i < more; ++i) prompt.push_back(static_cast<TokenId>(random_.Below(3)));
    if (prompt.empty()) prompt.push_back(1);
    if (random_.Below(40) == 0) prompt.push_back(kNotFinite);
    prompt.resize(std::min<size_t>(prompt.size(), kContext - 1));
    return prompt;
  }

  void Erase() {
    const std::string tenant = Tenant();
    for (auto& [id, asked] : asked_) asked.erased |= !asked.ended && asked.spec.tenant == tenant;
    scheduler_.Erase(tenant, [](const Erasure&) {});
    silent_.insert(tenant);
  }

  void Ask() {
    GenerateRequest spec;
    spec.tenant = Tenant();
    silent_.erase(spec.tenant);
    spec.prompt = RandomPrompt();
    spec.sampling.temperature = 0;
    spec.priority = static_cast<int32_t>(random_.Below(3)) - 1;
    spec.max_tokens = static_cast<uint32_t>(random_.Below(random_.Below(2) == 0 ? 90 : 30));
    spec.n = 1 + static_cast<uint32_t>(random_.Below(random_.Below(3) == 0 ? parallel_ : 1));
    spec.ignore_eos = random_.Below(2) == 0;
    const uint64_t chunk = random_.Below(2) * (1 + random_.Below(12));
    if (chunk > 0) spec.chunk_tokens = static_cast<uint32_t>(chunk);
    spec.reuse = random_.Below(10) == 0  ? Reuse::kNothing
                 : random_.Below(4) == 0 ? Reuse::kBlocks
                                         : Reuse::kAll;
    if (random_.Below(4) == 0) spec.timeout_ms = random_.Below(1000);
    if (retained_.Below(6) == 0) {
      Embed(&spec);
    } else if (retained_.Below(3) == 0) {
      spec.retention = RandomRetention();
    }
    // So that it drafts before decisions that drop blocks.
    if (spec.retention && spec.retention->policy == Retention::kHeavy) spec.max_tokens += 80;
    if (!spec.embeds && may_have_spans() && spanned_.Below(3) == 0) {
      std::erase(spec.prompt, kNotFinite);
      AddRandomSpans(spanned_, kContext - 1, spec);
    }
    // Each step takes up to 40 ms, so that times end while others ask.
    if (kept_.Below(2) == 0) {
      for (uint64_t marks = 1 + kept_.Below(GenerateRequest::kMaxKeeps); marks > 0; --marks) {
        spec.keeps.push_back({static_cast<uint32_t>(kept_.Below(spec.prompt.size() + 1)),
                              1 + static_cast<uint32_t>(kept_.Below(4))});
      }
    }
    const uint64_t id = ++last_id_;
    if (id % 2 == 0) spec.on_trace = [this](const RequestTrace& trace) { HearTrace(trace); };
    auto checked =
        CheckRequest(spec, [this, id](const Event& event) { Hear(id, event); },
                     {.ctx_size = kContext,
                      .max_positions = kContext,
                      .vocab_size = kVocab,
                      .parallel = parallel_,
                      .num_blocks = MostBlocks(quotas_, spec.tenant, cache_->plan().num_blocks),
                      .pool_blocks = cache_->plan().num_blocks,
                      .layout = &runner_.layout(),
                      .step_tokens = cache_->step_tokens(),
                      .cache_mode = mode_,
                      .no_retention = mode_ == CacheMode::kNone || long_after_ != 0 ? "no" : "",
                      .no_spans = may_have_spans() ? "" : "no"});
    if (!checked) return;  // can never fit
    (*checked)->id = RequestId{id};
    (*checked)->times.submitted_ns = MonotonicNs();
    if (spec.on_trace) (*checked)->tracing.trace = NewTrace();
    // No format has the end within its text.
    if (!spec.ignore_eos && formats_.Below(4) != 0) AddFormat(**checked);
    Asked& asked = asked_[id];
    asked.submitted_ns = MonotonicNs();
    if (random_.Below(4) == 0) asked.deadline_ns = MonotonicNs() + random_.Below(1'000'000'000);
    asked.spec = std::move(spec);
    asked.max_tokens = (*checked)->max_tokens;
    asked.retention = (*checked)->retention;
    asked.spans = (*checked)->spans.plan;
    asked.answers.resize(asked.spec.n);
    asked.reasons.resize(asked.spec.n, FinishReason::kNone);
    scheduler_.Enqueue(std::move(*checked));
  }

  bool may_have_spans() const {
    return mode_ != CacheMode::kNone && long_after_ == 0 && !runner_.layout().has_windows();
  }

  void Embed(GenerateRequest* spec) {
    spec->embeds = retained_.Below(2) == 0 ? Pooling::kLast : Pooling::kMean;
    spec->max_tokens = 0;
    spec->n = 1;
    if (spec->embeds == Pooling::kMean) spec->reuse = Reuse::kNothing;
  }

  void CheckKept(const Asked& asked) {
    const std::optional<uint32_t> tokens = asked.receipt.kept;
    if (!tokens) return;
    const auto most = std::ranges::max(asked.spec.keeps, {}, &GenerateRequest::Keep::tokens).tokens;
    wrong += *tokens > most || *tokens % runner_.layout().block_tokens() != 0;
    kept += *tokens > 0;
  }

  void CheckEmbedding(const Asked& asked, std::span<const float> embedding) {
    if (asked.reasons[0] != FinishReason::kLength) return;
    const bool is_whole = embedding.size() == FakeRunner::kHidden;
    const float number = runner_.NumberOf(asked.spec.prompt, *asked.spec.embeds);
    wrong += !is_whole || embedding[FakeRunner::kNumberAt] != number;
    ++embedded;
    embedded_again += asked.receipt.preemptions > 0;
  }

  RetentionChoice RandomRetention() {
    if (retained_.Below(3) == 0) {
      return {.policy = Retention::kHeavy,
              .budget = 64 + 16 * static_cast<uint32_t>(retained_.Below(2)),
              .sinks = static_cast<uint32_t>(retained_.Below(33)),
              .exact_tokens = static_cast<uint32_t>(retained_.Below(kContext))};
    }
    RetentionChoice choice{
        .policy = retained_.Below(3) == 0 ? Retention::kWindow : Retention::kSinksWindow,
        .budget = 16 + static_cast<uint32_t>(retained_.Below(retained_.Below(2) == 0 ? 8 : 60))};
    if (choice.policy == Retention::kSinksWindow) {
      choice.sinks = static_cast<uint32_t>(retained_.Below(*choice.budget / 2 + 1));
    }
    if (retained_.Below(2) == 0) {
      choice.exact_tokens = static_cast<uint32_t>(retained_.Below(kContext));
    }
    return choice;
  }

  // Makes tokens of two letters; the format has all texts of them, and is walked in many places.
  static std::shared_ptr<const TokenTrie> LettersTrie() {
    std::vector<std::string> texts;
    for (uint32_t id = 0; id < kVocab; ++id) {
      texts.push_back({static_cast<char>('a' + id % 26), static_cast<char>('a' + id / 7)});
    }
    texts[kEndToken].clear();
    return std::make_shared<const TokenTrie>(texts, std::vector<TokenId>{kEndToken});
  }
  // Adds a format that changes no answer, but rows wait for what they may draw.
  void AddFormat(Request& request) {
    static const auto grammar = CompileGrammarText(
        FormatLanguage::kGbnf,
        "root ::= (a | b)*\na ::= [a-m]+ | [a-z] b?\nb ::= [n-z] a? | [a-z] [a-z]? | c \"a\" | "
        "c\nc ::= [b-y] [a-z]? | [a-z]");
    KV_CHECK(grammar.has_value());
    request.format = {.whole = *grammar, .closing = nullptr, .masks = &masks_};
    if (formats_.Below(2) == 0) return;
    request.spec.sampling.temperature = 1;  // then the mask is looked at
    request.spec.sampling.top_k = 1;
  }

  void Cancel() {
    auto it = asked_.begin();
    std::advance(it, static_cast<ptrdiff_t>(random_.Below(asked_.size())));
    Cancel(it->first, it->second);
  }

  void Cancel(uint64_t id, Asked& asked) {
    scheduler_.Cancel(RequestId{id});
    asked.cancelled = true;
    if (!asked.ended) asked.end_ns = MonotonicNs();
  }

  // Cancels requests whose deadline has passed, as a caller would.
  void CancelExpired() {
    for (auto& [id, asked] : asked_) {
      if (asked.ended || asked.cancelled || !IsPast(asked.deadline_ns)) continue;
      Cancel(id, asked);
      asked.expired = true;
    }
  }

  // Draws a guarantee, a maximum, both or neither for each tenant.
  void SetQuotas() {
    const uint64_t block_bytes = cache_->layout().block_bytes();
    const uint32_t num_blocks = cache_->plan().num_blocks;
    TenantTable tenants;
    for (const char* name : {"alice", "bob"}) {
      TenantRules& rules = tenants[name];
      rules.kv_guaranteed = random_.Below(2) * random_.Below(num_blocks / 2) * block_bytes;
      if (random_.Below(2) == 0) {
        rules.kv_max = rules.kv_guaranteed + (2 + random_.Below(num_blocks)) * block_bytes;
      }
      // Often fewer than the choices of a request that waits, or was preempted.
      if (random_.Below(2) == 0) {
        rules.max_running = 1 + static_cast<uint32_t>(random_.Below(parallel_));
      }
    }
    quotas_ = QuotasOf(tenants, cache_->layout());
    scheduler_.SetTenants(tenants);
  }

  // Changes quotas: requests that were accepted before may get less, or not fit any more.
  void ChangeQuotas() {
    SetQuotas();
    changed_quotas_ = true;
    for (auto& [id, asked] : asked_) asked.refitted |= !asked.ended;
    ++refits;
  }

  const KvAccounts::Account& AccountOf(const std::string& owner) {
    return cache_->accounts().of(cache_->EnterAccount(owner));
  }

  // Counts the blocks of the owners with quotas that have no request here.
  std::map<std::string, uint32_t> HeldByAbsent() {
    std::map<std::string, uint32_t> held;
    for (const auto& [owner, quota] : quotas_) {
      const bool present = std::ranges::any_of(asked_, [&](const auto& asked) {
        return asked.second.spec.tenant == owner && !asked.second.ended;
      });
      if (!present && !erased_) held[owner] = AccountOf(owner).held();
    }
    return held;
  }

  void CheckQuotas(const std::map<std::string, uint32_t>& held_before) {
    if (changed_quotas_) return;
    for (const auto& [owner, quota] : quotas_) {
      EXPECT_LE(AccountOf(owner).held(), quota.max) << owner;
      EXPECT_LE(AccountOf(owner).used(), quota.max) << owner;
    }
    for (const auto& [owner, before] : held_before) {
      const uint32_t more = cache_->layout().num_own_groups() - 1;  // KvCache::SetQuota
      const uint32_t guaranteed = quotas_.at(owner).guaranteed;
      wrong += AccountOf(owner).held() < std::min(before, guaranteed - std::min(guaranteed, more));
    }
    limited += cache_->counters().quota_evicted_blocks > 0;
  }

  // Checks the rules of who gives way, and that a tenant which comes back has saved nothing up.
  void CheckPlan(const View& view, const StepPlan& plan) {
    if (plan.preempt) {
      const RequestView& victim = view.requests[*plan.preempt];
      wrong += victim.preemptions >= SchedulingPolicy::kMaxPreemptions;
      wrong +=
          victim.preemptions > 0 && victim.tokens_since_resume < SchedulingPolicy::kCooldownTokens;
      if (plan.cause == PreemptCause::kPriority) {
        ++by_priority;
        wrong += std::ranges::none_of(view.requests, [&](const RequestView& request) {
          return request.state != RequestView::State::kRunning && request.tenant == victim.tenant &&
                 request.priority < victim.priority;
        });
      }
    }
    for (const uint32_t rows : plan.preempt || plan.admit ? std::vector<uint32_t>() : plan.rows) {
      whole_blocks += rows >= cache_->layout().block_tokens();
    }
    std::map<uint32_t, double> charges;
    for (const RequestView& request : view.requests) {
      charges[request.tenant] = view.tenants[request.tenant].charge_ns;
    }
    for (const auto& [tenant, charge] : charges) {
      const bool others_stay = std::ranges::any_of(
          charges_, [&](const auto& before) { return charges.contains(before.first); });
      if (!others_stay || charges_.contains(tenant)) continue;
      const double least = std::ranges::min(charges_ | std::views::values);
      wrong += charge < least;
    }
    charges_ = std::move(charges);
  }

  static bool IsPast(uint64_t deadline_ns) {
    return deadline_ns != 0 && MonotonicNs() >= deadline_ns;
  }

  void Hear(uint64_t id, const Event& event) {
    Asked& asked = asked_.at(id);
    EXPECT_FALSE(asked.ended) << "an event after the last one";
    if (!event.tokens.empty()) {
      EXPECT_FALSE(asked.cancelled) << "a token after the end was asked for";
      if (!asked.first_token_ns) asked.first_token_ns = MonotonicNs();
      asked.last_token_ns = MonotonicNs();
    }
    for (const GeneratedToken& token : event.tokens) {
      asked.answers[event.choice].push_back(token.id);
    }
    if (event.finish_reason != FinishReason::kNone) {
      EXPECT_EQ(asked.reasons[event.choice], FinishReason::kNone) << "a choice ended twice";
      asked.reasons[event.choice] = event.finish_reason;
    }
    if (event.error) asked.error = event.error;
    if (event.stop_match == "deadline") asked.out_of_time = true;
    if (!event.last) return;
    asked.ended = true;
    asked.receipt = event.receipt;
    if (asked.spec.embeds) CheckEmbedding(asked, event.embedding);
    asked.prefilled = event.prefilled_tokens;
    if (asked.cancelled) return;
    asked.end_ns = MonotonicNs();
    EXPECT_TRUE(asked.deadline_ns == 0 || step_start_ns_ < asked.deadline_ns) << "ran on";
  }

  void HearTrace(const RequestTrace& trace) {
    CheckTrace(trace);
    for (const auto& each : trace.allocations) {
      waits += each.waited;
      evicting_steps += each.evicted_blocks > 0;
    }
    ++traces;
  }

  static size_t LongestAnswer(const Asked& asked) {
    size_t longest = 0;
    for (const auto& answer : asked.answers) longest = std::max(longest, answer.size());
    return longest;
  }

  static void CheckTimes(const Asked& asked) {
    const uint64_t first_ns = asked.first_token_ns.value_or(asked.end_ns);
    if (asked.first_token_ns || !asked.spec.timeout_ms) {
      EXPECT_EQ(Ns(asked.receipt.ttft_ms), first_ns - asked.submitted_ns);
    }
    CheckParts(asked.receipt);
    const size_t longest = LongestAnswer(asked);
    if (longest > 1) {
      const auto between_ns = static_cast<double>(asked.last_token_ns - first_ns);
      EXPECT_DOUBLE_EQ(asked.receipt.tpot_ms, between_ns * 1e-6 / static_cast<double>(longest - 1));
    }
  }

  static bool BeginsWith(const std::vector<TokenId>& whole, const std::vector<TokenId>& begin) {
    return begin.size() <= whole.size() && std::equal(begin.begin(), begin.end(), whole.begin());
  }

  // Tells whether an erase ended it, since a choice of it waited for its format.
  static bool IsCut(const Asked& asked) {
    return asked.error && asked.error->code == Code::kUnavailable;
  }
  static bool IsWrongCut(const Asked& asked, uint32_t choice, const std::vector<TokenId>& want,
                         FinishReason reason) {
    EXPECT_TRUE(asked.erased);
    const std::vector<TokenId>& got = asked.answers[choice];
    if (asked.reasons[choice] == FinishReason::kError) return !BeginsWith(want, got);
    return got != want || asked.reasons[choice] != reason;
  }

  void Check() {
    EXPECT_EQ(cache_->usage().pinned_blocks, 0u);
    EXPECT_EQ(cache_->reserved_blocks(), 0u);
    for (const std::string& tenant : silent_) {
      EXPECT_EQ(AccountOf(tenant).idle, 0u) << "found after an erase";
    }
    uint64_t num_choices = 0, prompt_tokens = 0, prefilled = 0;
    for (const auto& [id, asked] : asked_) num_choices += asked.spec.n;
    CheckStats(stats_, asked_.size(), num_choices);
    for (const auto& [id, asked] : asked_) {
      if (!asked.ended) {
        ++wrong;
        continue;
      }
      SCOPED_TRACE(testing::Message() << "request " << id);
      if (!asked.refitted && !IsCut(asked)) CheckTimes(asked);  // it may end between steps
      expired += asked.expired;
      const bool bad_prompt = std::ranges::count(asked.spec.prompt, kNotFinite) > 0;
      FinishReason reason = FinishReason::kNone;
      const std::vector<TokenId> want =
          bad_prompt ? std::vector<TokenId>() : Expected(runner_, asked, &reason);
      if (bad_prompt) reason = FinishReason::kError;
      for (uint32_t choice = 0; choice < asked.spec.n; ++choice) {
        const std::vector<TokenId>& got = asked.answers[choice];
        if (asked.reasons[choice] == FinishReason::kCancelled) {
          EXPECT_TRUE(asked.cancelled);
          wrong += !BeginsWith(want, got);
          ++cancelled;
          continue;
        }
        if (asked.error && asked.error->code == Code::kDeadlineExceeded) {
          EXPECT_GE(asked.end_ns, asked.submitted_ns + *asked.spec.timeout_ms * 1'000'000);
          EXPECT_TRUE(got.empty());
          ++late;
          continue;
        }
        if (IsCut(asked)) {
          wrong += IsWrongCut(asked, choice, want, reason);
          continue;
        }
        if (asked.out_of_time) {
          EXPECT_GE(asked.end_ns, asked.submitted_ns + *asked.spec.timeout_ms * 1'000'000);
          EXPECT_TRUE(asked.first_token_ns);
          wrong += !BeginsWith(want, got);
          ++late;
          continue;
        }
        if (asked.refitted) {
          wrong += !BeginsWith(want, got);
          continue;
        }
        wrong += asked.reasons[choice] != reason;
        if (reason ==
            FinishReason::kError) {  // an error of one choice ends all others where they are
          wrong += !BeginsWith(want, got);
          ++failed;
        } else {
          wrong += got != want;
        }
        wrong += asked.error.has_value() != (reason == FinishReason::kError);
      }
      reused += asked.receipt.cached_tokens();
      computed += asked.receipt.computed;
      if (asked.receipt.retention) dropped += asked.receipt.retention->dropped;
      if (asked.spans) {
        spans_reused += asked.receipt.spans.value().reused_tokens;
        spans_computed += asked.receipt.spans->computed_tokens;
        spans_cut += CheckSpansReceipt(*asked.spans, asked.receipt, LongestAnswer(asked) > 0);
      }
      CheckKept(asked);
      preemptions += asked.receipt.preemptions;
      recomputed += asked.receipt.recomputed;
      const size_t prompt = asked.spec.prompt.size();
      // The last token is not computed.
      const bool restarts = long_after_ != 0 && prompt <= long_after_ && LongestAnswer(asked) > 1 &&
                            prompt + LongestAnswer(asked) > size_t{long_after_} + 1;
      if (!asked.cancelled && !asked.error && !asked.out_of_time) {
        restarted += restarts && asked.receipt.recomputed > 0;
        if (!restarts && asked.receipt.preemptions == 0) {
          EXPECT_EQ(asked.receipt.recomputed, 0u);
        }
      }
      forked += asked.spec.n - 1;
      EXPECT_EQ(asked.receipt.cached_tokens() + asked.receipt.computed, asked.spec.prompt.size());
      prompt_tokens += asked.receipt.prompt_tokens;
      prefilled += asked.prefilled;
      EXPECT_LE(asked.prefilled, asked.receipt.computed);
      unfinished_prompts += asked.prefilled < asked.receipt.computed;
      if (asked.first_token_ns && asked.receipt.preemptions == 0 && long_after_ == 0) {
        EXPECT_EQ(asked.prefilled, asked.receipt.computed);
      }
    }
    // What tenants are charged for was computed.
    wrong += prefilled > stats_.prefill_rows;
    // A prompt counts once, if it ran at all.
    wrong += stats_.prompt_tokens > prompt_tokens;
    // No tenant is without a number, where there is one for each.
    wrong += num_tenants_ > 1 && stats_.tenants[0].service_ns != 0;
  }

  OwnClock clock_;
  uint64_t step_start_ns_ = 0;
  Random random_, formats_, drafts_, retained_, spanned_, kept_;
  const TestDrafts draft_kind_ = TestDrafts(drafts_.Below(5));
  TokenMasks masks_;
  const CacheMode mode_;
  const uint32_t parallel_, max_rows_;
  const uint32_t num_tenants_ = random_.Below(8) == 0 ? 1 : 256;
  const uint32_t long_after_;  // 0: RoPE does not change with the length
  FakeRunner runner_;
  std::unique_ptr<KvCache> cache_;
  Scheduler scheduler_;
  EngineStats stats_;
  KvQuotas quotas_;
  bool changed_quotas_ = false, erased_ = false;
  std::set<std::string> silent_;        // tenants that asked nothing since their last erase
  std::map<uint32_t, double> charges_;  // of the tenants that the last plan saw
  uint64_t last_id_ = 0;
  std::map<uint64_t, Asked> asked_;
};

TEST(Scheduler, NoScheduleChangesAnAnswer) {
  uint64_t count = Rounds(10'000, 1000);
  // KVASIR_SCHEDULES=N: more of them; KVASIR_SEED=S: one.
  if (const char* more = std::getenv("KVASIR_SCHEDULES")) count = std::strtoull(more, nullptr, 10);
  const char* only = std::getenv("KVASIR_SEED");
  const uint64_t first = only != nullptr ? std::strtoull(only, nullptr, 10) : 1;
  if (only != nullptr) count = 1;
  uint64_t reused = 0, computed = 0, cancelled = 0, expired = 0, failed = 0, forked = 0,
           evicted = 0, cursors = 0, preemptions = 0, recomputed = 0, late = 0, rope_changed = 0,
           by_priority = 0, restarted = 0, traces = 0, waits = 0, evicting_steps = 0, limited = 0,
           refits = 0, whole_blocks = 0, unfinished_prompts = 0, accepted = 0, rejected = 0,
           dropped = 0, spans_reused = 0, spans_computed = 0, spans_cut = 0, embedded = 0,
           embedded_again = 0, kept = 0;
  for (uint64_t seed = first; seed < first + count && !HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "KVASIR_SEED=" << seed);
    RandomSchedule schedule(seed);
    schedule.Run();
    EXPECT_EQ(schedule.wrong, 0u);
    reused += schedule.reused;
    computed += schedule.computed;
    cancelled += schedule.cancelled;
    expired += schedule.expired;
    failed += schedule.failed;
    forked += schedule.forked;
    preemptions += schedule.preemptions;
    by_priority += schedule.by_priority;
    recomputed += schedule.recomputed;
    late += schedule.late;
    restarted += schedule.restarted;
    traces += schedule.traces;
    waits += schedule.waits;
    evicting_steps += schedule.evicting_steps;
    limited += schedule.limited;
    refits += schedule.refits;
    evicted += schedule.counters().evicted_blocks;
    cursors += schedule.counters().cursor_hits;
    whole_blocks += schedule.whole_blocks;
    unfinished_prompts += schedule.unfinished_prompts;
    dropped += schedule.dropped;
    spans_reused += schedule.spans_reused;
    spans_computed += schedule.spans_computed;
    spans_cut += schedule.spans_cut;
    embedded += schedule.embedded;
    embedded_again += schedule.embedded_again;
    kept += schedule.kept;
    accepted += schedule.drafts().accepted;
    rejected += schedule.drafts().drafted - schedule.drafts().accepted;
    rope_changed += schedule.counters().misses[static_cast<size_t>(MissReason::kRopeChanged)];
  }
  std::printf(
      "%llu schedules: %llu tokens reused, %llu computed, %llu choices cancelled, "
      "%llu requests timed out, %llu choices failed, %llu forks, %llu blocks evicted, %llu cursor "
      "hits, %llu preemptions, %llu tokens recomputed, %llu choices late, %llu misses of RoPE, "
      "%llu "
      "restarts, %llu drafted tokens accepted, %llu rejected\n",
      static_cast<unsigned long long>(count), static_cast<unsigned long long>(reused),
      static_cast<unsigned long long>(computed), static_cast<unsigned long long>(cancelled),
      static_cast<unsigned long long>(expired), static_cast<unsigned long long>(failed),
      static_cast<unsigned long long>(forked), static_cast<unsigned long long>(evicted),
      static_cast<unsigned long long>(cursors), static_cast<unsigned long long>(preemptions),
      static_cast<unsigned long long>(recomputed), static_cast<unsigned long long>(late),
      static_cast<unsigned long long>(rope_changed), static_cast<unsigned long long>(restarted),
      static_cast<unsigned long long>(accepted), static_cast<unsigned long long>(rejected));
  if (count < 1000) return;
  for (const uint64_t seen :
       {reused,         cancelled,    expired,        failed,       forked,
        evicted,        cursors,      preemptions,    recomputed,   late,
        by_priority,    rope_changed, restarted,      traces,       waits,
        evicting_steps, limited,      refits,         whole_blocks, unfinished_prompts,
        accepted,       rejected,     dropped,        spans_reused, spans_computed,
        spans_cut,      embedded,     embedded_again, kept}) {
    EXPECT_GT(seen, count / 1000);
  }
}

// A check that can fail: each fault of the cache shows in an answer.
TEST(Scheduler, SeesInjectedFaults) {
  for (const Fault fault :
       {Fault::kStaleBlock, Fault::kWrongPosition, Fault::kStaleResume, Fault::kAcceptedWrong,
        Fault::kKeptDraft, Fault::kUnshiftedSinks, Fault::kLateDrop, Fault::kForeignResume,
        Fault::kDraftedScore, Fault::kLooseSpan}) {
    // A row of a draft is seldom the one that a block's weight decides on.
    constexpr bool kHasTime = Rounds(true, false);
    if (fault == Fault::kDraftedScore && !kHasTime) continue;
    InjectFault(fault);
    uint64_t seed = 0, wrong = 0;
    while (wrong == 0 && seed < 20'000) {
      testing::TestPartResultArray failures;
      const testing::ScopedFakeTestPartResultReporter reporter(
          testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &failures);
      RandomSchedule schedule(++seed);
      schedule.Run();
      wrong += schedule.wrong + static_cast<uint64_t>(failures.size());
    }
    InjectFault(Fault::kNone);
    EXPECT_GT(wrong, 0u) << "fault " << static_cast<int>(fault);
    std::printf("fault %d: found by schedule %llu\n", static_cast<int>(fault),
                static_cast<unsigned long long>(seed));
  }
}

}  // namespace
}  // namespace kvasir
