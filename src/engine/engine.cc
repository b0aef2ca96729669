#include "kvasir/engine.h"

#include <malloc.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <future>
#include <map>
#include <new>
#include <thread>
#include <variant>

#include "base/check.h"
#include "base/clock.h"
#include "base/cpu_topology.h"
#include "base/mutex.h"
#include "base/random_bytes.h"
#include "base/result.h"
#include "base/start_thread.h"
#include "base/until_done.h"
#include "engine/assembly.h"
#include "engine/generation_config.h"
#include "engine/model_files.h"
#include "engine/queue_places.h"
#include "engine/request_check.h"
#include "engine/request_tracing.h"
#include "engine/scheduler.h"
#include "engine/seen_prompts.h"
#include "engine/start_parts.h"
#include "import/file_watch.h"
#include "simd/target.h"

namespace kvasir {
namespace {

struct CancelCommand {
  RequestId id;
};
struct CancelAllCommand {};
struct EraseCommand {
  std::string tenant;
  ErasureSink done;
};
struct TenantsCommand {
  TenantTable tenants;
};
struct CheckCommand {
  std::promise<void> done;
};
struct FlushCommand {
  FlushSink done;
};
struct ListCommand {
  std::optional<std::string> tenant;
  SequencesSink done;
};
using Command = std::variant<std::unique_ptr<Request>, CancelCommand, CancelAllCommand,
                             EraseCommand, TenantsCommand, CheckCommand, ListCommand, FlushCommand>;

// How long the engine's thread sleeps while all that is left waits for the tier, and how long it
// goes on handing blocks over when the engine ends.
constexpr auto kTierPause = std::chrono::milliseconds(20);
constexpr auto kTierEnd = std::chrono::seconds(10);

uint64_t Nanoseconds(std::chrono::nanoseconds time) { return static_cast<uint64_t>(time.count()); }

// Bytes that a request holds until its last event.
uint64_t BytesOf(const GenerateRequest& spec) {
  uint64_t bytes = sizeof(Request) + spec.tenant.capacity() + spec.cache_salt.capacity() +
                   spec.prompt.capacity() * sizeof(TokenId) +
                   spec.message_ends.capacity() * sizeof(uint32_t) +
                   spec.stop_ids.capacity() * sizeof(TokenId) +
                   spec.sampling.logit_bias.capacity() * sizeof(spec.sampling.logit_bias[0]);
  bytes += spec.id.capacity();
  if (spec.cache_owner) bytes += spec.cache_owner->capacity();
  for (const std::string& text : spec.stop) bytes += sizeof(text) + text.capacity();
  for (const std::string& name : spec.ignored) bytes += sizeof(name) + name.capacity();
  return bytes;
}

Result<uint64_t> RandomSeed() {
  std::array<uint8_t, 8> bytes;
  KV_TRY(FillRandom(bytes));
  return std::bit_cast<uint64_t>(bytes);
}

// Callers put commands into a queue, and the engine thread takes them between steps. Only the
// engine thread uses runner, cache and scheduler.
class EngineOnThread final : public Engine {
 public:
  struct Parts {
    EngineOptions options;
    MemoryPlan plan;
    ModelCard card;
    ModelText text;
    Target target{};
    std::vector<uint32_t> cpus;  // [0] is the engine thread's; empty: anywhere
    std::unique_ptr<Runner> runner;
    std::unique_ptr<FileWatch> files;
    Disk disk;  // the cache's tier
    std::unique_ptr<KvCache> cache;
    SchedulerOptions scheduler;
    Secret prompt_secret{};  // of SeenPrompts' hashes
  };

  explicit EngineOnThread(Parts parts);
  ~EngineOnThread() override;
  // Must be called once, first. kExhausted when the system refuses the thread.
  Status Start();

  Result<std::vector<RequestId>> SubmitAll(std::vector<GenerateRequest> requests,
                                           IndexedSink sink) override;
  void Cancel(RequestId id) override { Post(CancelCommand{id}); }
  void Drain() override;
  void Erase(std::string_view tenant, ErasureSink done) override;
  void Erase(std::string_view tenant) override;
  void ListSequences(std::optional<std::string> tenant, SequencesSink done) override {
    Post(ListCommand{std::move(tenant), std::move(done)});
  }
  void Flush(FlushSink done) override;
  std::optional<TierStats> DiskStats() const override {
    return parts_.disk.tier ? std::optional(parts_.disk.tier->Stats()) : std::nullopt;
  }
  Status CheckRoom(const std::string& tenant) const override;
  void CountRejection(RejectReason reason, const std::optional<std::string>& tenant) override;
  Status SetTenants(const TenantTable& tenants) override;
  Status CheckModel() override { return parts_.files->CheckLately(); }
  EngineStats Stats() const override;
  const MemoryPlan& plan() const override { return parts_.plan; }
  const ModelCard& card() const override { return parts_.card; }
  const EngineOptions& options() const override { return parts_.options; }
  const Tokenizer* tokenizer() const override { return parts_.text.tokenizer.get(); }
  const ChatTemplate* chat_template() const override { return parts_.text.chat_template.get(); }
  const char* target() const override { return NameOf(parts_.target).data(); }
  void CheckInvariants() override;

 private:
  // A refusal that is counted.
  void CountRefusal(RejectReason reason, const std::optional<std::string>& tenant)
      KV_REQUIRES(mutex_);
  tl::unexpected<Error> Reject(RejectReason reason, const std::string& tenant,
                               tl::unexpected<Error> error) KV_REQUIRES(mutex_);
  // A sink must not wait for the engine's thread: the wait would never end.
  void CheckMayWait() const { KV_CHECK(std::this_thread::get_id() != thread_.get_id()); }
  void Post(Command command);
  uint32_t MostBlocksOf(const GenerateRequest& spec) const;
  TenantRules RulesOf(const std::string& tenant) const KV_REQUIRES(mutex_);
  Status CheckQuota(std::span<const std::unique_ptr<Request>> requests) const KV_REQUIRES(mutex_);
  Workload WorkloadNow() const KV_REQUIRES(mutex_);
  Error Full(Error error) const;
  uint64_t MostWaitingBytes() const { return parts_.options.request_memory_bytes / kWaitingShare; }
  Status CheckQueue(const std::string& tenant, uint64_t count, uint64_t bytes) const
      KV_REQUIRES(mutex_);
  Status CheckTimes(std::span<const std::unique_ptr<Request>> requests) const KV_REQUIRES(mutex_);
  bool SharesCache(const GenerateRequest& spec) const {
    return parts_.options.cache_mode == CacheMode::kPrefix && spec.reuse != Reuse::kNothing;
  }
  void RememberAnswers(const Request& request);
  void CountEnded(const Scheduler::Ended& ended);
  void Run();
  void Apply(Command& command);
  Scheduler::Ended Step();

  Parts parts_;
  const HmacKey prompt_key_;
  Scheduler scheduler_;  // engine thread

  mutable Mutex mutex_;
  std::condition_variable wake_, drained_;
  std::deque<Command> commands_ KV_GUARDED_BY(mutex_);
  uint64_t next_id_ KV_GUARDED_BY(mutex_) = 1;
  // Number and bytes of requests without their last event; the bytes are a part of
  // request_memory_bytes.
  uint32_t num_outstanding_ KV_GUARDED_BY(mutex_) = 0;
  uint64_t waiting_bytes_ KV_GUARDED_BY(mutex_) = 0;
  TenantTable tenants_ KV_GUARDED_BY(mutex_);
  KvQuotas quotas_ KV_GUARDED_BY(mutex_);
  SeenPrompts seen_prompts_ KV_GUARDED_BY(mutex_);
  QueuePlaces places_ KV_GUARDED_BY(mutex_);  // requests whose sink has not had the last event
  uint32_t num_erasures_ KV_GUARDED_BY(mutex_) = 0;  // without a called sink
  RejectCounts rejected_ KV_GUARDED_BY(mutex_){};
  std::map<std::string, uint64_t> rejected_of_ KV_GUARDED_BY(mutex_);  // at most max_tenants
  uint64_t rejected_of_nobody_ KV_GUARDED_BY(mutex_) = 0;  // of tenants without a place there
  bool draining_ KV_GUARDED_BY(mutex_) = false;
  bool stopping_ KV_GUARDED_BY(mutex_) = false;
  bool tier_progress_ KV_GUARDED_BY(mutex_) = false;  // since the engine thread looked

  mutable Mutex stats_mutex_;
  EngineStats stats_ KV_GUARDED_BY(stats_mutex_);
  Workload workload_ KV_GUARDED_BY(stats_mutex_);

  std::thread thread_;
};

EngineOnThread::EngineOnThread(Parts parts)
    : parts_(std::move(parts)),
      prompt_key_(parts_.prompt_secret),
      scheduler_(*parts_.runner, *parts_.cache, parts_.scheduler),
      seen_prompts_(parts_.plan.kv_bytes / std::max<uint64_t>(parts_.plan.kv_bytes_per_token, 1)),
      places_(parts_.options.parallel + parts_.options.max_queued, MostWaitingBytes()) {
  const CachePlan& cache = parts_.cache->plan();
  KV_CHECK(parts_.runner->weights_bytes() == parts_.plan.weights_bytes);
  KV_CHECK(parts_.runner->scratch_bytes() + scheduler_.scratch_bytes() ==
           parts_.plan.scratch_bytes);
  KV_CHECK(cache.pool_bytes == parts_.plan.kv_bytes);
  KV_CHECK(cache.index_bytes == parts_.plan.index_bytes);
  KV_CHECK(cache.cursor_bytes == parts_.plan.cursor_bytes);
  KV_CHECK(cache.total_bytes() <= parts_.plan.kv_memory_bytes);
  scheduler_.set_on_stats([this](const EngineStats& stats) {
    const MutexLock lock(stats_mutex_);
    stats_ = stats;
    workload_ = scheduler_.workload();
  });
  if (parts_.disk.tier) {
    parts_.disk.tier->set_on_progress([this] {
      const MutexLock lock(mutex_);
      tier_progress_ = true;
      wake_.notify_one();
    });
  }
  scheduler_.set_on_end([this](const Request& request) {
    RememberAnswers(request);
    const MutexLock lock(mutex_);
    places_.Give(request.spec.tenant, request.bytes);
  });
}

// The next turn of a chat begins with this one's prompt and answer. (The last token has no KV.)
void EngineOnThread::RememberAnswers(const Request& request) {
  if (!SharesCache(request.spec)) return;
  try {
    for (const auto& sequence : request.sequences) {
      if (sequence->tokens.size() <= request.prompt_tokens()) continue;
      const std::span<const TokenId> known(sequence->tokens.data(), sequence->tokens.size() - 1);
      const SeenPrompts::Beginnings text =
          SeenPrompts::Of(prompt_key_, request.cache_owner(), request.spec.cache_salt, known);
      const std::vector<uint32_t> points = parts_.cache->ResumePointsOf(text.tokens, {});
      const MutexLock lock(mutex_);
      seen_prompts_.Add(text, points);
    }
  } catch (const std::bad_alloc&) {  // estimates are too high then
  }
}

Status EngineOnThread::Start() {
  KV_ASSIGN(thread_, StartThread("engine", [this] { Run(); }));
  return {};
}

EngineOnThread::~EngineOnThread() {
  // The tier's threads tell this object of their progress: they end while all of it is there.
  struct EndTier {
    std::unique_ptr<DiskTier>& tier;
    ~EndTier() { tier.reset(); }
  } end{parts_.disk.tier};
  if (!thread_.joinable()) return;  // never started
  CheckMayWait();
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
  if (!parts_.disk.tier) return;
  // What was handed over is stored before the process ends.
  const auto told = std::make_shared<std::promise<void>>();
  parts_.disk.tier->Flush([told](const Result<TierFlushed>&) { told->set_value(); });
  told->get_future().wait_for(kTierEnd);
}

void EngineOnThread::Post(Command command) {
  {
    const MutexLock lock(mutex_);
    commands_.push_back(std::move(command));
  }
  wake_.notify_one();
}

Result<std::vector<RequestId>> EngineOnThread::SubmitAll(std::vector<GenerateRequest> requests,
                                                         IndexedSink sink) {
  RequestLimits limits{.ctx_size = parts_.card.ctx_size,
                       .max_positions = parts_.card.max_positions,
                       .vocab_size = parts_.card.vocab_size,
                       .parallel = parts_.options.parallel,
                       .num_blocks = static_cast<uint32_t>(parts_.plan.num_blocks),
                       .pool_blocks = static_cast<uint32_t>(parts_.plan.num_blocks),
                       .layout = &parts_.cache->layout(),
                       .step_tokens = parts_.cache->step_tokens(),
                       .cache_mode = parts_.options.cache_mode,
                       .tokenizer = parts_.text.tokenizer.get(),
                       .no_text = parts_.text.no_text ? *parts_.text.no_text : std::string_view()};
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
    if (const auto seed = request->spec.sampling.seed) {
      request->seed = *seed;
    } else {
      KV_ASSIGN(request->seed, RandomSeed());
    }
    request->submitted_ns = MonotonicNs();
    bytes += request->bytes = BytesOf(request->spec);
    if (request->spec.on_trace) request->trace = NewTrace();
    beginnings.push_back(SharesCache(request->spec)
                             ? SeenPrompts::Of(prompt_key_, request->cache_owner(),
                                               request->spec.cache_salt, request->spec.prompt)
                             : SeenPrompts::Beginnings());
    checked.push_back(std::move(request));
  }
  const MutexLock lock(mutex_);
  if (checked.empty()) return std::vector<RequestId>();
  const std::string& tenant = checked.front()->spec.tenant;
  if (draining_) {
    return Reject(RejectReason::kDraining, tenant,
                  Fail(Code::kUnavailable, "engine: shutting down"));
  }
  const uint64_t most_bytes = MostWaitingBytes();
  if (bytes > most_bytes - std::min(most_bytes, waiting_bytes_)) {
    return Reject(RejectReason::kMemory, tenant,
                  Fail(Code::kExhausted,
                       "engine: {} bytes of requests do not fit beside those that run or wait (at "
                       "most {} bytes in all); try again later",
                       bytes, most_bytes));
  }
  KV_TRY(CheckQuota(checked));
  if (Status room = CheckQueue(tenant, checked.size(), bytes); !room) {
    return Reject(QueueReason(room.error()), tenant, tl::unexpected(std::move(room.error())));
  }
  for (size_t i = 0; i < checked.size(); ++i) {
    checked[i]->seen_tokens = seen_prompts_.SeenTokens(beginnings[i]);
  }
  if (Status times = CheckTimes(checked); !times) {
    const bool late = times.error().code == Code::kUnavailable;  // else it waits too long
    return Reject(late ? RejectReason::kDeadline : RejectReason::kQueueTime, tenant,
                  tl::unexpected(std::move(times.error())));
  }
  for (size_t i = 0; i < checked.size(); ++i) {
    const GenerateRequest& spec = checked[i]->spec;
    if (!SharesCache(spec)) continue;
    seen_prompts_.Add(beginnings[i],
                      parts_.cache->ResumePointsOf(checked[i]->prompt_tokens(), spec.message_ends));
  }
  std::vector<RequestId> ids;
  ids.reserve(checked.size());
  try {
    places_.MakeRoomFor(tenant);
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
  places_.Take(tenant, ids.size(), bytes);
  num_outstanding_ += static_cast<uint32_t>(ids.size());
  wake_.notify_one();
  return ids;
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
    if (request->spec.n <= most) continue;
    return FailField(Code::kInvalidArgument, "n",
                     "{} answers at once; of this API key's tenant at most {} run at once",
                     request->spec.n, most);
  }
  return {};
}

// Says when a running choice is expected to end.
Error EngineOnThread::Full(Error error) const {
  constexpr double kLeastMs = 50;  // whoever comes back at once is likely to be refused again
  const MutexLock lock(stats_mutex_);
  const double wait_ns = workload_.running_ns / std::max(workload_.running, 1u);
  error.retry_ms = static_cast<uint64_t>(std::max(std::ceil(wait_ns / 1e6), kLeastMs));
  return error;
}

// Whether `count` more requests of a tenant, of so many bytes, may run or wait. The messages do not
// show the number or size of other tenants' requests.
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
            fmt::format("engine: {} requests of this API key's tenant run or wait, and at most {} "
                        "may; try again later",
                        present, own_limit),
            "max_queued"}));
}

// What the engine's thread knew after its last step, and what it has not seen yet.
Workload EngineOnThread::WorkloadNow() const {
  Workload workload;
  {
    const MutexLock lock(stats_mutex_);
    workload = workload_;
  }
  for (const Command& command : commands_) {
    const auto* request = std::get_if<std::unique_ptr<Request>>(&command);
    if (request == nullptr) continue;
    Workload::Tenant& tenant = workload.Of((*request)->spec.tenant);
    const uint64_t answer = std::min((*request)->max_tokens, tenant.expected_answer);
    tenant.waiting_ns += workload.WorkNs((*request)->new_tokens(), answer * (*request)->spec.n);
    ++workload.waiting;
  }
  return workload;
}

// Refuses requests that are expected to start or to end too late.
Status EngineOnThread::CheckTimes(std::span<const std::unique_ptr<Request>> requests) const {
  Workload workload = WorkloadNow();
  const double most_ms = parts_.options.max_queue_ms;
  for (const auto& request : requests) {
    const WaitEstimate estimate =
        EstimateWait(workload, request->spec.tenant, request->new_tokens(), request->max_tokens);
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
      return FailField(Code::kUnavailable, "deadline",
                       "the request is expected to take {:.0f} ms, {:.0f} of them in the queue, "
                       "and its time limit is {} ms; allow more time or ask for less",
                       end_ns / 1e6, start_ms, *limit);
    }
    if (workload.row_ns > 0) request->receipt.estimate_ms = estimate.first_token_ns / 1e6;
  }
  return {};
}

Status EngineOnThread::CheckRoom(const std::string& tenant) const {
  const MutexLock lock(mutex_);
  return CheckQueue(tenant, 1, 0);
}

Status EngineOnThread::SetTenants(const TenantTable& tenants) {
  TenantsCommand command{tenants};
  KvQuotas quotas = QuotasOf(tenants, parts_.cache->layout());
  const auto num_blocks = static_cast<uint32_t>(parts_.plan.num_blocks);
  const uint32_t headroom = HeadroomBlocks(parts_.options.kv_headroom, num_blocks);
  KV_TRY(CheckQuotas(quotas, num_blocks, headroom, parts_.plan.block_bytes));
  const MutexLock lock(mutex_);
  commands_.push_back(std::move(command));
  for (auto tenant = rejected_of_.begin(); tenant != rejected_of_.end();) {
    if (tenants.contains(tenant->first)) {
      ++tenant;
    } else {
      rejected_of_nobody_ += tenant->second;
      tenant = rejected_of_.erase(tenant);
    }
  }
  tenants_ = tenants;
  quotas_ = std::move(quotas);
  wake_.notify_one();
  return {};
}

void EngineOnThread::Drain() {
  CheckMayWait();
  MutexLock lock(mutex_);
  if (draining_) {
    commands_.push_back(CancelAllCommand{});
    wake_.notify_one();
  }
  draining_ = true;
  while (num_outstanding_ + num_erasures_ > 0) lock.Wait(drained_);
}

void EngineOnThread::Erase(std::string_view tenant, ErasureSink done) {
  EraseCommand command{std::string(tenant), std::move(done)};
  {
    const MutexLock lock(mutex_);
    seen_prompts_.Forget(tenant);
    commands_.push_back(std::move(command));
    ++num_erasures_;
  }
  wake_.notify_one();
}

void EngineOnThread::Erase(std::string_view tenant) {
  CheckMayWait();
  const auto told = std::make_shared<std::promise<void>>();  // outlives the sink's last call
  const std::future<void> done = told->get_future();
  Erase(tenant, [told](const Erasure&) { told->set_value(); });
  done.wait();
}

void EngineOnThread::Flush(FlushSink done) {
  if (!parts_.disk.tier) {
    done(
        Fail(Code::kUnsupported, "there is nothing to flush: this engine keeps nothing on a disk"));
    return;
  }
  Post(FlushCommand{std::move(done)});
}

void EngineOnThread::CheckInvariants() {
  CheckMayWait();
  CheckCommand command;
  const std::future<void> done = command.done.get_future();
  Post(std::move(command));
  done.wait();
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

void EngineOnThread::CountRejection(RejectReason reason, const std::optional<std::string>& tenant) {
  const MutexLock lock(mutex_);
  CountRefusal(reason, tenant);
}

EngineStats EngineOnThread::Stats() const {
  EngineStats stats;
  {
    const MutexLock lock(stats_mutex_);
    stats = stats_;
  }
  const MutexLock lock(mutex_);
  stats.requests.rejected = rejected_;
  for (TenantStats& tenant : stats.tenants) {
    const auto found = rejected_of_.find(tenant.name);
    if (found != rejected_of_.end()) tenant.rejected = found->second;
  }
  if (!stats.tenants.empty()) stats.tenants[0].rejected += rejected_of_nobody_;
  return stats;
}

void EngineOnThread::Run() {
  EnterComputeThread();
  const PinScope pin(parts_.cpus);
  std::deque<Command> commands;
  std::optional<uint64_t> stopped_ns;
  for (bool stopping = false; !stopping || !scheduler_.idle();) {
    const bool waits = scheduler_.WaitsForTier();
    {
      MutexLock lock(mutex_);
      while (scheduler_.idle() && commands_.empty() && !stopping_) lock.Wait(wake_);
      if (waits && commands_.empty() && !tier_progress_) lock.WaitFor(wake_, kTierPause);
      tier_progress_ = false;
      commands.swap(commands_);
      stopping = stopping_;
    }
    if (stopping && !stopped_ns) stopped_ns = MonotonicNs();
    if (stopped_ns && MonotonicNs() - *stopped_ns > Nanoseconds(kTierEnd)) {
      scheduler_.DropUnsealed();
    }
    for (Command& command : commands) UntilDone([&] { Apply(command); });
    commands.clear();
    if (stopping) UntilDone([&] { scheduler_.CancelAll(); });
    CountEnded(Step());
  }
}

void EngineOnThread::CountEnded(const Scheduler::Ended& ended) {
  if (ended.count + ended.num_erased == 0) return;
  const MutexLock lock(mutex_);
  num_outstanding_ -= ended.count;
  waiting_bytes_ -= ended.bytes;
  num_erasures_ -= ended.num_erased;
  if (num_outstanding_ + num_erasures_ == 0) drained_.notify_all();
}

// No exception may leave the engine's thread. A step without memory ends its requests; the cache,
// which allocates nothing, keeps what they committed before.
Scheduler::Ended EngineOnThread::Step() {
  try {
    return scheduler_.Step();
  } catch (...) {
    UntilDone([&] {
      scheduler_.FailAll({Code::kUnavailable, "engine: the system is out of memory; try again"});
    });
    return {};
  }
}

void EngineOnThread::Apply(Command& command) {
  if (auto* request = std::get_if<std::unique_ptr<Request>>(&command)) {
    scheduler_.Enqueue(std::move(*request));
  } else if (const auto* cancel = std::get_if<CancelCommand>(&command)) {
    scheduler_.Cancel(cancel->id);
  } else if (std::holds_alternative<CancelAllCommand>(command)) {
    scheduler_.CancelAll();
  } else if (auto* erase = std::get_if<EraseCommand>(&command)) {
    scheduler_.Erase(erase->tenant, std::move(erase->done));
  } else if (const auto* rules = std::get_if<TenantsCommand>(&command)) {
    scheduler_.SetTenants(rules->tenants);
  } else if (auto* check = std::get_if<CheckCommand>(&command)) {
    scheduler_.CheckInvariants();
    check->done.set_value();
  } else if (auto* list = std::get_if<ListCommand>(&command)) {
    list->done(scheduler_.States(list->tenant));
  } else if (auto* flush = std::get_if<FlushCommand>(&command)) {
    scheduler_.Flush(std::move(flush->done));
  }
}

}  // namespace

Result<RequestId> Engine::Submit(GenerateRequest request, EventSink sink) {
  std::vector<GenerateRequest> requests;
  requests.push_back(std::move(request));
  KV_ASSIGN(const std::vector<RequestId> ids,
            SubmitAll(std::move(requests),
                      [sink = std::move(sink)](size_t, const Event& event) { sink(event); }));
  return ids.front();
}

Result<MemoryPlan> Engine::PlanMemory(const EngineOptions& options,
                                      std::optional<uint32_t> sequence_tokens) {
  KV_ASSIGN(Assembly assembly, Assemble(options, Need::kShapes));
  if (sequence_tokens) PlanSequences(assembly.cache, *sequence_tokens, assembly.plan);
  return assembly.plan;
}

Result<std::vector<MemoryPlan>> Engine::PlanFormats(EngineOptions options,
                                                    std::optional<uint32_t> sequence_tokens) {
  KV_ASSIGN(Assembly assembly, Assemble(options, Need::kShapes));
  std::vector<MemoryPlan> plans;
  for (const std::string& format : KvFormatList()) {
    options.kv_format = format;
    KV_ASSIGN(assembly, Assemble(options, std::move(assembly.model)));
    if (sequence_tokens) PlanSequences(assembly.cache, *sequence_tokens, assembly.plan);
    plans.push_back(assembly.plan);
  }
  return plans;
}

Result<std::unique_ptr<Engine>> Engine::Load(const EngineOptions& options) {
  const ComputeScope compute;
  KV_ASSIGN(Assembly assembly, Assemble(options));
  EngineOnThread::Parts parts;
  parts.options = options;
  parts.plan = assembly.plan;
  parts.target = assembly.runner.target;
  parts.cpus = assembly.runner.cpus;
  // Parses the text files while the weights are processed, which saves a tenth of a second and
  // more.
  KV_ASSIGN(auto text, StartLoadText(TakeText(assembly.model)));
  parts.card = CardOf(assembly);
  KV_ASSIGN(const ServerSecret secret, SecretFor(options));
  KV_ASSIGN(const Digest weights, DigestFor(assembly, secret, options));
  // A first start has read all weights by now, so it reports errors of the text before packing.
  if (text.wait_for(std::chrono::seconds(0)) == std::future_status::ready) {
    KV_ASSIGN(parts.text, text.get());
  }
  assembly.cache.secret = secret.secret;
  KV_ASSIGN(parts.prompt_secret, EphemeralSecret());
  KvCacheOptions cache = assembly.cache;
  assembly.runner.images = ImagesFor(assembly, weights, secret, options);
  const auto progress = [&](double share) {
    if (options.progress) options.progress("weights", share);
  };
  if (options.generation_config) {
    KV_ASSIGN(parts.card.sampling,
              ParseGenerationConfig(assembly.model.generation_config_json,
                                    (assembly.model.path / "generation_config.json").string()));
  }
  const ModelConfig config = assembly.model.config;
  KV_ASSIGN(parts.runner, Runner::Create(std::move(assembly.model), assembly.runner, progress));

  if (text.valid()) {
    KV_ASSIGN(parts.text, text.get());
  }
  const Tokenizer* tokenizer = parts.text.tokenizer.get();
  parts.card.eos = EndTokens(config, parts.text);
  parts.card.no_text = parts.text.no_text;
  parts.card.text_notes = TextNotes(parts.text);
  parts.files = WatchFiles(*parts.runner, parts.plan, options);
  KV_TRY(parts.files->CheckAll());
  parts.card.weights_shared = parts.runner->image() != nullptr;
  const IdentityParts content = ContentParts(config, weights, tokenizer);
  parts.card.content = ToHex(IdentityOf(content));
  const Identity identity = IdentityFor(content, assembly.plan, cache.layout);
  KV_ASSIGN(parts.disk, DiskFor(assembly, secret, identity, options));
  cache.tier = parts.disk.tier.get();
  KV_ASSIGN(parts.cache, KvCache::Create(std::move(cache)));
  parts.scheduler = {.cache_mode = options.cache_mode,
                     .schedule = options.schedule,
                     .admission = options.admission,
                     .kv_headroom = options.kv_headroom,
                     .target_step_ns = uint64_t{options.target_itl_ms} * 1'000'000,
                     .ctx_size = parts.card.ctx_size,
                     .num_tenants = options.max_tenants,
                     .parallel = options.parallel,
                     .max_rows = assembly.runner.max_rows,
                     .logit_rows = assembly.logit_rows,
                     .tier = parts.disk.tier.get(),
                     .identity = identity,
                     .end_tokens = parts.card.eos,
                     .tokenizer = tokenizer,
                     .files = parts.files.get()};
  if (assembly.long_rope_after > 0) {
    IdentityParts long_content = content;
    long_content.config += " rope=long";
    parts.scheduler.long_rope = {
        assembly.long_rope_after,
        IdentityFor(std::move(long_content), assembly.plan, parts.cache->layout())};
  }
  auto engine = std::make_unique<EngineOnThread>(std::move(parts));
  KV_TRY(engine->Start());
  malloc_trim(0);  // returns the memory of parsing the tokenizer to the system
  return engine;
}

Result<Generation> Generate(Engine& engine, GenerateRequest request) {
  Generation generation;
  std::optional<Error> error;
  const auto done = std::make_shared<std::promise<void>>();  // outlives the sink's last call
  request.n = 1;
  const auto sink = [&, done](const Event& event) {
    for (const GeneratedToken& token : event.tokens) generation.tokens.push_back(token.id);
    generation.text += event.text;
    if (event.finish_reason != FinishReason::kNone) generation.finish_reason = event.finish_reason;
    if (event.error) error = event.error;
    if (!event.last) return;
    generation.receipt = event.receipt;
    done->set_value();
  };
  const std::future<void> finished = done->get_future();
  KV_TRY(engine.Submit(std::move(request), sink));
  finished.wait();
  if (error) return tl::unexpected(*error);
  return generation;
}

}  // namespace kvasir
