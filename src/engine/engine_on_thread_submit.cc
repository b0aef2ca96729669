// What EngineOnThread does with a request before it is queued: checks, counts, refusals.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <new>

#include "base/clock.h"
#include "base/digest.h"
#include "base/random_bytes.h"
#include "cache/tier_probe.h"
#include "engine/engine_on_thread.h"
#include "engine/memory_plan.h"
#include "engine/request_bytes.h"
#include "schedule/load_pace.h"
#include "schedule/request_check.h"
#include "schedule/request_tracing.h"

namespace kvasir {
namespace {

// Bytes that a request holds until its last event. Running sequences of the context are planned;
// of a longer one the ids beyond it are the request's, and the places of their blocks.
uint64_t BytesOf(const Request& request, const ModelCard& card) {
  const GenerateRequest& spec = request.spec;
  const uint32_t ctx_size = card.ctx_size;
  const uint64_t longest = uint64_t{request.prompt_tokens()} + request.max_tokens;
  const uint64_t bytes =
      sizeof(Request) + AllocatedBytes(spec) +
      (spec.embeds ? uint64_t{card.hidden_size} * (sizeof(float) + sizeof(double)) : 0) +
      spec.n * (longest - std::min<uint64_t>(longest, ctx_size)) * kSequenceBytesPerToken;
  uint64_t of_spans = 0;
  if (request.spans.plan) {
    for (const SpanPlan::Part& part : request.spans.plan->parts()) {
      of_spans += sizeof(SpanPart) + sizeof(SpanPlan::Part) + 2 * sizeof(StepRun) +
                  request.spans.plan->TokensOf(part) * kSequenceBytesPerToken;
    }
  }
  if (!spec.beams) return bytes + of_spans;
  return bytes +
         BeamSearch::BytesFor(spec.beams->beams, request.max_tokens + request.prompt_tokens());
}

Result<uint64_t> RandomSeed() {
  std::array<uint8_t, 8> bytes;
  KV_TRY(FillRandom(bytes));
  return std::bit_cast<uint64_t>(bytes);
}

// What an engine can run, before quotas are known.
RequestLimits LimitsOf(const EngineOnThread::Parts& parts) {
  return {.ctx_size = parts.card.ctx_size,
          .max_positions = parts.card.max_positions,
          .vocab_size = parts.card.vocab_size,
          .source_vocab_size = parts.card.source_vocab_size,
          .parallel = parts.options.parallel,
          .num_blocks = static_cast<uint32_t>(parts.plan.num_blocks),
          .pool_blocks = static_cast<uint32_t>(parts.plan.num_blocks),
          .layout = &parts.cache->layout(),
          .step_tokens = parts.cache->step_tokens(),
          .cache_mode = parts.options.cache_mode,
          .retention = parts.options.retention,
          .no_retention = parts.card.no_retention,
          .no_spans = parts.card.no_spans,
          .bos = parts.card.bos,
          .has_learned_positions = parts.runner->source().positions.has_value(),
          .tokenizer = parts.text.tokenizer.get(),
          .no_text = parts.text.no_text ? *parts.text.no_text : std::string_view()};
}

}  // namespace

// Returns what is noted of tokens of a request; nothing where no other prompt is found by them.
SeenPrompts::Beginnings EngineOnThread::BeginningsOf(const Request& request,
                                                     std::span<const TokenId> tokens) const {
  // Prompts with a source are found by the source alone.
  if (!SharesCache(request.spec) || !request.spec.source.empty()) return {};
  return SeenPrompts::Of(prompt_key_, request.cache_owner(), request.spec.cache_salt, tokens,
                         request.adapter_digest());
}

// The next turn of a chat begins with this one's prompt and answer. (The last token has no KV.)
void EngineOnThread::RememberAnswers(const Request& request) {
  if (request.is_erased || !SharesCache(request.spec) || !request.spec.source.empty()) return;
  try {
    for (const auto& sequence : request.answer.sequences) {
      if (sequence->tokens.size() <= request.prompt_tokens()) continue;
      const std::span<const TokenId> known(sequence->tokens.data(), sequence->tokens.size() - 1);
      const SeenPrompts::Beginnings text = BeginningsOf(request, request.Exact(known));
      const std::vector<uint32_t> points = parts_.cache->ResumePointsOf(text.tokens, {});
      const MutexLock lock(mutex_);
      seen_prompts_.Add(text, points);
    }
  } catch (const std::bad_alloc&) {  // estimates are too high then
  }
}

Status EngineOnThread::CompileFormats(std::span<GenerateRequest> requests) {
  for (GenerateRequest& request : requests) {
    if (!request.format) continue;
    KV_ASSIGN(CompiledFormat compiled,
              formats_.Compile(*request.format, request.cache_owner.value_or(request.tenant)));
    request.compiled_format = std::make_shared<const CompiledFormat>(std::move(compiled));
  }
  return {};
}

Result<std::vector<RequestId>> EngineOnThread::SubmitAll(std::vector<GenerateRequest> requests,
                                                         IndexedSink sink) {
  RequestLimits limits = LimitsOf(parts_);
  const uint32_t limit = parts_.options.parallel + parts_.options.max_queued;
  if (requests.size() > limit) {
    return FailField(Code::kInvalidArgument, "prompt",
                     "{} prompts; at most {} may run or wait at once", requests.size(), limit);
  }
  std::vector<std::unique_ptr<Request>> checked;
  std::vector<SeenPrompts::Beginnings> beginnings;
  uint64_t bytes = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto one = [sink, i](const Event& event) { sink(i, event); };
    limits.num_blocks = MostBlocksOf(requests[i]);
    KV_ASSIGN(auto request, CheckRequest(std::move(requests[i]), one, limits));
    KV_TRY(TakeAdapters(*request));
    if (request->spec.compiled_format) {
      request->format = *request->spec.compiled_format;
    } else if (request->spec.format) {
      KV_ASSIGN(request->format, formats_.Compile(*request->spec.format, request->cache_owner()));
    }
    if (request->spec.sampling.infill) {
      KV_ASSIGN(request->words, formats_.Words());
    }
    if (const auto seed = request->spec.sampling.seed) {
      request->seed = *seed;
    } else {
      KV_ASSIGN(request->seed, RandomSeed());
    }
    request->times.submitted_ns = MonotonicNs();
    bytes += request->bytes = BytesOf(*request, parts_.card);
    if (request->spec.on_trace) request->tracing.trace = NewTrace();
    beginnings.push_back(BeginningsOf(*request, request->Exact(request->spec.prompt)));
    request->wait.seen_tokens = TokensFromDisk(*request);
    checked.push_back(std::move(request));
  }
  const MutexLock lock(mutex_);
  if (checked.empty()) return std::vector<RequestId>();
  const std::string& tenant = checked.front()->spec.tenant;
  const bool is_spare = checked.front()->spec.only_when_idle;
  if (draining_ && is_spare) return Fail(Code::kUnavailable, "engine: shutting down");
  if (draining_) {
    return Reject(RejectReason::kDraining, tenant,
                  Fail(Code::kUnavailable, "engine: shutting down"));
  }
  const uint64_t most_bytes = MostWaitingBytes();
  if (bytes > most_bytes - std::min(most_bytes, waiting_bytes_)) {
    if (is_spare) return Fail(Code::kExhausted, "engine: no memory for work of later");
    return Reject(RejectReason::kMemory, tenant,
                  Fail(Code::kExhausted,
                       "engine: {} bytes of requests do not fit beside those that run or wait (at "
                       "most {} bytes in all); try again later",
                       bytes, most_bytes));
  }
  if (!is_spare) {
    KV_TRY(CheckLoad(tenant, checked, beginnings, bytes));
  }
  std::vector<RequestId> ids;
  ids.reserve(checked.size());
  try {
    if (!is_spare) places_.MakeRoomFor(tenant);
    for (auto& request : checked) {
      request->id = RequestId{next_id_++};
      commands_.push_back(std::move(request));
      ids.push_back(RequestId{next_id_ - 1});
    }
  } catch (const std::bad_alloc&) {
    for (size_t i = 0; i < ids.size(); ++i) commands_.pop_back();
    return Fail(Code::kUnavailable, "engine: the system is out of memory; try again");
  }
  waiting_bytes_ += bytes;
  if (!is_spare) places_.Take(tenant, ids.size(), bytes);
  num_outstanding_ += static_cast<uint32_t>(ids.size());
  wake_.notify_one();
  return ids;
}

// Checks whether the tenant may have these requests now; then notes what they begin with.
Status EngineOnThread::CheckLoad(const std::string& tenant,
                                 std::span<const std::unique_ptr<Request>> checked,
                                 std::span<const SeenPrompts::Beginnings> beginnings,
                                 uint64_t bytes) {
  KV_TRY(CheckQuota(checked));
  if (Status room = CheckQueue(tenant, checked.size(), bytes); !room) {
    return Reject(QueueReason(room.error()), tenant, tl::unexpected(std::move(room.error())));
  }
  for (size_t i = 0; i < checked.size(); ++i) {
    checked[i]->wait.seen_tokens =
        std::max(checked[i]->wait.seen_tokens, seen_prompts_.SeenTokens(beginnings[i]));
  }
  if (Status times = CheckTimes(checked); !times) {
    const bool late = times.error().code == Code::kUnavailable;  // else it waits too long
    return Reject(late ? RejectReason::kDeadline : RejectReason::kQueueTime, tenant,
                  tl::unexpected(std::move(times.error())));
  }
  for (size_t i = 0; i < checked.size(); ++i) {
    const GenerateRequest& spec = checked[i]->spec;
    if (!SharesCache(spec)) continue;
    std::vector<uint32_t> points =
        parts_.cache->ResumePointsOf(checked[i]->prompt_tokens(), spec.message_ends);
    std::erase_if(points, [&](uint32_t point) { return point > beginnings[i].tokens; });
    seen_prompts_.Add(beginnings[i], points);
  }
  return {};
}

// Tokens of the prompt that need not be computed because the disk has them, less those that could
// be computed while it is read.
uint32_t EngineOnThread::TokensFromDisk(const Request& request) const {
  if (!parts_.tiers.disk.tier || !SharesCache(request.spec) || !request.spec.use_disk) return 0;
  const std::span<const TokenId> prompt = request.Exact(request.spec.prompt);
  const std::optional<LongRope>& long_rope = parts_.scheduler.long_rope;
  const bool is_long = long_rope && prompt.size() > long_rope->after_tokens;
  std::optional<Digest> salt;
  if (request.spec.cache_salt) salt = Sha256Of(*request.spec.cache_salt);
  const BlockKey root = RootKeyOf(parts_.cache_secret, request.cache_owner(), salt,
                                  IdentityOf(parts_.scheduler, request.adapters.get(), is_long));
  const uint32_t tokens =
      TokensInTier(*parts_.tiers.disk.tier, parts_.cache->layout(), root, prompt);
  if (tokens == 0) return 0;
  double row_ns;
  {
    const MutexLock lock(stats_mutex_);
    row_ns = workload_.RowNs();
  }
  if (row_ns == 0) return tokens;  // nothing can be estimated yet
  const double compute_ns = tokens * row_ns;
  const double bytes = static_cast<double>(tokens * parts_.plan.kv_bytes_per_token);
  const double bytes_per_s = parts_.tiers.disk.tier->Stats().load_bytes_per_s;
  const double load_ns = bytes_per_s > 0 ? bytes / bytes_per_s * 1e9 : LoadPace::kUnknownNs;
  return static_cast<uint32_t>(tokens * (1 - std::min(load_ns / compute_ns, 1.0)));
}

uint32_t EngineOnThread::MostBlocksOf(const GenerateRequest& spec) const {
  const MutexLock lock(mutex_);
  return MostBlocks(quotas_, spec.cache_owner.value_or(spec.tenant),
                    static_cast<uint32_t>(parts_.plan.num_blocks));
}

TenantRules EngineOnThread::RulesOf(const std::string& tenant) const {
  const auto found = tenants_.find(tenant);
  return found == tenants_.end() ? TenantRules() : found->second;
}

// REQUIRES: they have one tenant.
Status EngineOnThread::CheckQuota(std::span<const std::unique_ptr<Request>> requests) const {
  for (const auto& request : requests) {
    const uint32_t most = RulesOf(request->spec.tenant).max_running;
    if (request->width() <= most) continue;
    return FailField(Code::kInvalidArgument, request->spec.beams ? "beams" : "n",
                     "{} at once; of this API key's tenant at most {} run at once",
                     request->width(), most);
  }
  return {};
}

// Says when a running choice is expected to end.
Error EngineOnThread::Full(Error error) const {
  constexpr double kLeastMs = 50;  // a client that comes back at once is likely to be refused again
  const MutexLock lock(stats_mutex_);
  error.retry_ms = static_cast<uint64_t>(std::max(std::ceil(workload_.EndNs() / 1e6), kLeastMs));
  return error;
}

// Checks whether `count` more requests of a tenant, of so many bytes, may run or wait. The messages
// do not show the number or size of other tenants' requests.
Status EngineOnThread::CheckQueue(const std::string& tenant, uint64_t count, uint64_t bytes) const {
  const uint32_t limit = parts_.options.parallel + parts_.options.max_queued;
  if (places_.requests() + count > limit) {
    return tl::unexpected(Full(
        {Code::kExhausted,
         fmt::format("engine: the queue has no room for {} more (at most {} requests run or wait); "
                     "try again later",
                     count, limit)}));
  }
  if (places_.ExceedsShare(tenant, count, bytes, tenants_, MonotonicNs())) {
    return tl::unexpected(
        Full({Code::kExhausted,
              "engine: the queue is more than half full, and the requests of this API key's tenant "
              "that run or wait are its share of it; try again later"}));
  }
  const TenantRules rules = RulesOf(tenant);
  if (rules.max_queued == TenantRules::kNoLimit) return {};
  const uint64_t own_limit =
      uint64_t{std::min(rules.max_running, parts_.options.parallel)} + rules.max_queued;
  const uint64_t present = places_.requests_of(tenant);
  if (present + count <= own_limit) return {};
  return tl::unexpected(
      Full({Code::kExhausted,
            fmt::format("max_queued: engine: {} requests of this API key's tenant run or wait, and "
                        "at most {} may; try again later",
                        present, own_limit),
            {},
            {},
            {},
            Cause::kMaxQueued}));
}

// Returns what a request that has not begun needs.
Workload::Job EngineOnThread::JobOf(const Request& request, const Workload& workload) const {
  const uint32_t tenant = workload.IndexOf(request.spec.tenant);
  return MakeJob(parts_.cache->layout(),
                 {.tenant = tenant,
                  .choices = request.width(),
                  .tokens = request.prompt_tokens(),
                  .new_tokens = request.new_tokens(),
                  .source_tokens = request.new_source_tokens(),
                  .max_answer = request.max_tokens,
                  .expected_answer = workload.tenants[tenant].expected_answer});
}

// Refuses requests that are expected to start or to end too late.
Status EngineOnThread::CheckTimes(std::span<const std::unique_ptr<Request>> requests) const {
  Workload workload;
  {
    const MutexLock lock(stats_mutex_);
    workload = workload_;
  }
  if (!workload.cost.knows_anything()) return {};
  std::vector<Workload::Job> arrivals;  // that the engine's thread has not seen yet
  for (const Command& command : commands_) {
    const auto* request = std::get_if<std::unique_ptr<Request>>(&command);
    if (request == nullptr || (*request)->spec.only_when_idle) continue;
    arrivals.push_back(JobOf(**request, workload));
  }
  const uint64_t now_ns = MonotonicNs();
  const double most_ms = parts_.options.max_queue_ms;
  for (const auto& request : requests) {
    arrivals.push_back(JobOf(*request, workload));
    const WaitEstimate estimate = EstimateWait(workload, arrivals, now_ns);
    const double start_ms = estimate.start_ns / 1e6;
    if (start_ms > most_ms) {
      Error error{Code::kExhausted,
                  fmt::format("engine: the request would start in about {:.1f} s, and requests may "
                              "wait {:.1f} s (--max-queue-ms); try again later",
                              start_ms / 1e3, most_ms / 1e3)};
      error.retry_ms = static_cast<uint64_t>(start_ms - most_ms) + 1;
      return tl::unexpected(std::move(error));
    }
    const double end_ns = estimate.knows_end ? estimate.end_ns : estimate.first_token_ns;
    const auto limit = request->spec.timeout_ms;
    if (limit && end_ns / 1e6 > static_cast<double>(*limit)) {
      return FailCause(
          Code::kUnavailable, Cause::kDeadline,
          "deadline: the request is expected to take {:.0f} ms, {:.0f} of them in the queue, "
          "and its time limit is {} ms; allow more time or ask for less",
          end_ns / 1e6, start_ms, *limit);
    }
    request->receipt.estimate_ms = estimate.first_token_ns / 1e6;
  }
  return {};
}

Status EngineOnThread::CheckRoom(const std::string& tenant) const {
  const MutexLock lock(mutex_);
  return CheckQueue(tenant, 1, 0);
}

void EngineOnThread::CountRefusal(RejectReason reason, const std::optional<std::string>& tenant) {
  ++rejected_[static_cast<size_t>(reason)];
  if (!tenant) return;
  if (reason == RejectReason::kQueueFull || reason == RejectReason::kMemory) {
    places_.NoteRefusal(*tenant, MonotonicNs());
  }
  if (rejected_of_.contains(*tenant) || rejected_of_.size() < parts_.options.max_tenants) {
    ++rejected_of_[*tenant];
  } else {
    ++rejected_of_nobody_;
  }
}

tl::unexpected<Error> EngineOnThread::Reject(RejectReason reason, const std::string& tenant,
                                             tl::unexpected<Error> error) {
  CountRefusal(reason, tenant);
  return error;
}

void EngineOnThread::CountMiss(MissReason reason, uint32_t computed_tokens) {
  const MutexLock lock(mutex_);
  ++explained_misses_[static_cast<size_t>(reason)];
  explained_tokens_[static_cast<size_t>(reason)] += computed_tokens;
}

void EngineOnThread::CountVolatile(uint32_t tokens) {
  const MutexLock lock(mutex_);
  volatile_tokens_ += tokens;
}

void EngineOnThread::CountRejection(RejectReason reason, const std::optional<std::string>& tenant) {
  const MutexLock lock(mutex_);
  CountRefusal(reason, tenant);
}

}  // namespace kvasir
