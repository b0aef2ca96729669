// What EngineOnThread does with a request before it is queued; engine_on_thread_load.cc says
// whether it may wait.
#include <algorithm>
#include <array>
#include <bit>
#include <new>

#include "base/clock.h"
#include "base/digest.h"
#include "base/random_bytes.h"
#include "base/sizes.h"
#include "cache/tier_probe.h"
#include "engine/engine_on_thread.h"
#include "engine/memory_plan.h"
#include "kvasir/request_bytes.h"
#include "schedule/load_pace.h"
#include "schedule/request_check.h"
#include "schedule/request_tracing.h"

namespace kvasir {
namespace {

// Returns the bytes that a request holds until its last event. Running sequences of the context are
// planned; of a longer one the ids beyond it are the request's, and the places of their blocks.
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

// Returns what an engine can run, before quotas are known.
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

// Remembers a prompt and its answers, with which the next turn of a chat begins. (The last token
// has no KV.)
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
      KV_ASSIGN(request->format.words, formats_.Words());
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
  if (bytes > most_bytes - std::min(most_bytes, outstanding_.request_bytes)) {
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
  return PushAll(std::move(checked), bytes);
}

Result<std::vector<RequestId>> EngineOnThread::PushAll(
    std::vector<std::unique_ptr<Request>> checked, uint64_t bytes) {
  const std::string& tenant = checked.front()->spec.tenant;
  const bool is_spare = checked.front()->spec.only_when_idle;
  std::vector<RequestId> ids;
  ids.reserve(checked.size());
  try {
    if (!is_spare) places_.MakeRoomFor(tenant);
    for (auto& request : checked) {
      request->id = RequestId{outstanding_.next_id++};
      commands_.push_back(std::move(request));
      ids.push_back(RequestId{outstanding_.next_id - 1});
    }
  } catch (const std::bad_alloc&) {
    for (size_t i = 0; i < ids.size(); ++i) commands_.pop_back();
    return Fail(Code::kUnavailable, "engine: the system is out of memory; try again");
  }
  outstanding_.request_bytes += bytes;
  if (!is_spare) places_.Take(tenant, ids.size(), bytes);
  outstanding_.requests += static_cast<uint32_t>(ids.size());
  wake_.notify_one();
  return ids;
}

// Counts the tokens of the prompt that need not be computed because the disk has them, less those
// that could be computed while it is read.
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
    row_ns = published_.backlog.RowNs();
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
  return MostBlocks(tenants_.quotas, spec.cache_owner.value_or(spec.tenant),
                    static_cast<uint32_t>(parts_.plan.num_blocks));
}

}  // namespace kvasir
