#include "engine/engine_on_thread.h"

#include <algorithm>
#include <chrono>

#include "base/clock.h"
#include "base/cpu_topology.h"
#include "base/log.h"
#include "base/start_thread.h"
#include "base/until_done.h"
#include "base/wipe_stack.h"

namespace kvasir {
namespace {

// How long the engine's thread sleeps while all that is left waits for the tier, and how long it
// goes on handing blocks over when the engine ends.
constexpr auto kTierPause = std::chrono::milliseconds(20);
constexpr auto kTierEnd = std::chrono::seconds(10);
constexpr auto kTierClose = std::chrono::seconds(1);  // at least, for its threads to end

uint64_t DroppedBlocks(const TierStats& stats) {
  return stats.dropped_buffer + stats.dropped_failed;
}

uint64_t Nanoseconds(std::chrono::nanoseconds time) { return static_cast<uint64_t>(time.count()); }

}  // namespace

EngineOnThread::EngineOnThread(Parts parts)
    : parts_(std::move(parts)),
      prompt_key_(parts_.prompt_secret),
      formats_(parts_.text.tokenizer.get(), parts_.card.vocab_size, parts_.scheduler.end_tokens,
               parts_.options.grammar_memory_bytes, parts_.options.grammar_compiles == 1),
      scheduler_(*parts_.runner, *parts_.cache, parts_.scheduler),
      seen_prompts_(parts_.plan.kv_bytes / std::max<uint64_t>(parts_.plan.kv_bytes_per_token, 1)),
      places_(parts_.options.parallel + parts_.options.max_queued, MostWaitingBytes()),
      counts_(parts_.options.max_tenants) {
  const CachePlan& cache = parts_.cache->plan();
  KV_CHECK(parts_.runner->weights_bytes() == parts_.plan.weights_bytes);
  KV_CHECK(parts_.runner->scratch_bytes() + scheduler_.scratch_bytes() ==
           parts_.plan.scratch_bytes);
  KV_CHECK(scheduler_.retention_bytes() == parts_.plan.retention_bytes);
  KV_CHECK(cache.pool_bytes == parts_.plan.kv_bytes);
  KV_CHECK(cache.index_bytes == parts_.plan.index_bytes);
  KV_CHECK(cache.cursor_bytes == parts_.plan.cursor_bytes);
  KV_CHECK(cache.total_bytes() <= parts_.plan.kv_memory_bytes);
  if (const DraftModelOnEngine& draft = parts_.draft; draft.runner) {
    KV_CHECK(draft.runner->weights_bytes() == parts_.plan.draft_weights_bytes);
    KV_CHECK(draft.cache->plan().total_bytes() == parts_.plan.draft_kv_bytes);
    KV_CHECK(draft.runner->scratch_bytes() + scheduler_.draft_scratch_bytes() ==
             parts_.plan.draft_scratch_bytes);
  }
  scheduler_.set_on_stats([this](const EngineStats& stats) {
    const MutexLock lock(stats_mutex_);
    published_.stats = stats;
  });
  scheduler_.set_on_backlog([this](const Backlog& backlog) {
    const MutexLock lock(stats_mutex_);
    published_.backlog = backlog;
  });
  if (Tier* const tier = parts_.tiers.seen()) {
    tier->set_on_progress([this] {
      const MutexLock lock(mutex_);
      tier_progress_ = true;
      wake_.notify_one();
    });
  }
  scheduler_.set_on_end([this](const Request& request) {
    RememberAnswers(request);
    if (request.spec.only_when_idle) return;
    const MutexLock lock(mutex_);
    places_.Give(request.spec.tenant, request.bytes);
  });
}

Status EngineOnThread::Start() {
  if (parts_.events) {
    KV_TRY(parts_.events->Attach(parts_.event_log.get(), [this] { Post(FillEventsCommand{}); }));
    KV_CHECK(parts_.events->bytes() == parts_.plan.events_bytes);
    KV_TRY(parts_.events->Start());
  }
  KV_ASSIGN(thread_, StartThread("engine", [this] { Run(); }));
  return {};
}

EngineOnThread::~EngineOnThread() {
  // The tier's threads tell this object of their progress: they end, or are left, while all of it
  // is there.
  struct EndTier {
    Tiers& tiers;
    std::unique_ptr<KvEventPublisher>& events;
    std::chrono::nanoseconds patience = kTierEnd;
    ~EndTier() {
      events.reset();
      tiers.pair.reset();
      tiers.remote.reset();
      Disk& disk = tiers.disk;
      if (disk.tier)
        DiskTier::Close(std::move(disk.tier), std::move(disk.storage),
                        std::chrono::ceil<std::chrono::milliseconds>(patience));
    }
  } end{parts_.tiers, parts_.events};
  if (!thread_.joinable()) return;  // never started
  CheckMayWait();
  const uint64_t end_ns = MonotonicNs() + Nanoseconds(kTierEnd);
  Tier* const tier = parts_.tiers.seen();
  struct Part {
    const Tier* tier;
    const char* warning;
    uint64_t dropped_before = 0;
  };
  Part parts[] = {{parts_.tiers.disk.tier.get(),
                   "disk tier: the process ends; blocks that were not stored yet are dropped"},
                  {parts_.tiers.remote.get(),
                   "remote tier: the process ends; blocks that were not stored yet are dropped"}};
  for (Part& part : parts) {
    if (part.tier != nullptr) part.dropped_before = DroppedBlocks(part.tier->Stats());
  }
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
  if (tier == nullptr) return;
  // What was handed over is stored before the process ends.
  const auto told = std::make_shared<std::promise<void>>();
  tier->Flush([told](const Result<TierFlushed>&) { told->set_value(); });
  const auto left = [&] {
    return std::chrono::nanoseconds(end_ns - std::min(MonotonicNs(), end_ns));
  };
  told->get_future().wait_for(left());
  end.patience = std::max<std::chrono::nanoseconds>(left(), kTierClose);
  for (const Part& part : parts) {
    if (part.tier == nullptr) continue;
    const TierStats stats = part.tier->Stats();
    const uint64_t dropped = DroppedBlocks(stats) - part.dropped_before + stats.pending_blocks;
    if (dropped == 0) continue;
    Log(LogLevel::kWarning, part.warning, LogField("dropped", dropped),
        LogField("folder", stats.folder));
  }
}

void EngineOnThread::Post(Command command) {
  {
    const MutexLock lock(mutex_);
    commands_.push_back(std::move(command));
  }
  wake_.notify_one();
}

Status EngineOnThread::SetTenants(const TenantTable& tenants) {
  // A tenant's own object is followed for its sessions, also where its cache is a share group's.
  if (RemoteTier* const remote = parts_.tiers.remote.get()) {
    for (const auto& [name, rules] : tenants) remote->ReadyOwner(KvCache::OwnerOf(name));
    if (tenants.empty())
      remote->ReadyOwner(KvCache::OwnerOf("default"));  // whom all requests are of
  }
  TenantsCommand command{tenants};
  KvQuotas quotas = QuotasOf(tenants, parts_.cache->layout());
  const auto num_blocks = static_cast<uint32_t>(parts_.plan.num_blocks);
  const uint32_t headroom = HeadroomBlocks(parts_.options.kv_headroom, num_blocks);
  KV_TRY(CheckQuotas(quotas, num_blocks, headroom, parts_.plan.block_bytes));
  if (parts_.events) command.published = parts_.events->OwnerIn(tenants);
  const MutexLock lock(mutex_);
  commands_.push_back(std::move(command));
  counts_.KeepTenants(tenants);
  tenants_.rules = tenants;
  tenants_.quotas = std::move(quotas);
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
  commands_.push_back(StopSpareCommand{});
  wake_.notify_one();
  draining_ = true;
  while (outstanding_.requests + outstanding_.erasures > 0) lock.Wait(drained_);
}

void EngineOnThread::Erase(std::string_view owner, ErasureSink done) {
  EraseCommand command{std::string(owner), std::move(done)};
  {
    const MutexLock lock(mutex_);
    seen_prompts_.Forget(owner);
    commands_.push_back(std::move(command));
    ++outstanding_.erasures;
  }
  wake_.notify_one();
}

void EngineOnThread::Erase(std::string_view owner) {
  CheckMayWait();
  const auto told = std::make_shared<std::promise<void>>();  // outlives the sink's last call
  const std::future<void> done = told->get_future();
  Erase(owner, [told](const Erasure&) { told->set_value(); });
  done.wait();
}

void EngineOnThread::Forget(ForgetRequest request, ErasureSink done) {
  KV_CHECK(request.first <= request.last && request.last < request.ids.size());
  auto kept = std::make_shared<const KeptPrompts>(std::move(request.kept), request.ids);
  {
    const MutexLock lock(mutex_);
    seen_prompts_.Forget(request.owner);
    commands_.push_back(ForgetCommand{std::move(request), std::move(kept), std::move(done)});
    ++outstanding_.erasures;
  }
  wake_.notify_one();
}

void EngineOnThread::Flush(FlushSink done) {
  if (parts_.tiers.seen() == nullptr) {
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

EngineStats EngineOnThread::Stats() const {
  EngineStats stats;
  {
    const MutexLock lock(stats_mutex_);
    stats = published_.stats;
  }
  const MutexLock lock(mutex_);
  counts_.AddTo(&stats);
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
      while (scheduler_.idle() && commands.empty() && commands_.empty() && !stopping_ &&
             !(tier_progress_ && parts_.tiers.remote)) {
        lock.Wait(wake_);
      }
      const bool has_none = commands.empty() && commands_.empty();
      if (waits && has_none && !tier_progress_) lock.WaitFor(wake_, kTierPause);
      tier_progress_ = false;
      if (commands.empty()) commands.swap(commands_);
      stopping = stopping_ && commands_.empty();
    }
    if (stopping && !stopped_ns) stopped_ns = MonotonicNs();
    if (stopped_ns) {
      const uint64_t end_ns = *stopped_ns + Nanoseconds(kTierEnd);
      scheduler_.EndTierWaits(end_ns);
      if (MonotonicNs() >= end_ns) scheduler_.DropUnsealed();
    }
    const bool had_commands = !commands.empty();
    for (bool goes_on = true; goes_on && !commands.empty(); commands.pop_front()) {
      UntilDone([&] { Apply(commands.front()); });
      // A forget takes up to 16 ms of all rows: the next one waits for a step of them.
      const bool is_forget = std::holds_alternative<ForgetCommand>(commands.front());
      goes_on = stopping || !is_forget || !scheduler_.has_rows();
    }
    EraseHere();
    if (stopping) UntilDone([&] { scheduler_.CancelAll(); });
    const Scheduler::Ended ended = Step();
    CountEnded(ended);
    if (had_commands || ended.count > 0 || scheduler_.idle()) WipeUnusedStack();
    if (parts_.event_log) parts_.event_log->Tell();
  }
}

// Erases what another machine of the fleet has erased.
void EngineOnThread::EraseHere() {
  if (!parts_.tiers.remote) return;
  for (const ErasedOwner& erased : parts_.tiers.remote->TakeErased()) {
    UntilDone([&] {
      const MutexLock lock(mutex_);
      erased_owners_.Begin(erased);
      ++outstanding_.erasures;
    });
    UntilDone([&] {
      scheduler_.EraseHere(
          erased.owner, [this, erased](const Erasure& erasure) { EndEraseHere(erased, erasure); });
    });
  }
}

// Notes an erase that is done, and no sooner, so that a start after a crash does it again.
void EngineOnThread::EndEraseHere(const ErasedOwner& erased, const Erasure& erasure) {
  if (erasure.error) return parts_.tiers.remote->EraseAgain(erased);
  std::optional<ErasedOwner> note;
  {
    const MutexLock lock(mutex_);
    note = erased_owners_.EndCache(erased);
  }
  if (note) parts_.tiers.remote->NoteErased(*note);
}

void EngineOnThread::EndErasedElsewhere(const ErasedElsewhere& erased) {
  std::optional<ErasedOwner> note;
  {
    const MutexLock lock(mutex_);
    note = erased_owners_.EndOthers(erased);
  }
  if (note) parts_.tiers.remote->NoteErased(*note);
}

void EngineOnThread::CountEnded(const Scheduler::Ended& ended) {
  if (ended.count + ended.num_erased == 0) return;
  const MutexLock lock(mutex_);
  outstanding_.requests -= ended.count;
  outstanding_.request_bytes -= ended.bytes;
  outstanding_.erasures -= ended.num_erased;
  if (outstanding_.requests + outstanding_.erasures == 0) drained_.notify_all();
}

// Runs a step. No exception may leave the engine's thread. A step without memory ends its requests;
// the cache, which allocates nothing, keeps what they committed before.
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
    scheduler_.EndTierWaits(MonotonicNs());
  } else if (std::holds_alternative<StopSpareCommand>(command)) {
    scheduler_.StopSpare(Scheduler::Spare::kAll);
  } else if (auto* erase = std::get_if<EraseCommand>(&command)) {
    scheduler_.Erase(erase->owner, std::move(erase->done));
  } else if (auto* forget = std::get_if<ForgetCommand>(&command)) {
    scheduler_.Forget(forget->request, forget->kept, std::move(forget->done));
  } else if (const auto* rules = std::get_if<TenantsCommand>(&command)) {
    scheduler_.SetTenants(rules->tenants);
    if (parts_.events) parts_.cache->SetEventOwner(rules->published);
  } else if (auto* check = std::get_if<CheckCommand>(&command)) {
    scheduler_.CheckInvariants();
    check->done.set_value();
  } else if (auto* list = std::get_if<ListCommand>(&command)) {
    list->done(scheduler_.States(list->tenant));
  } else if (auto* prefixes = std::get_if<PrefixesCommand>(&command)) {
    constexpr size_t kMostRuns = 512, kMostTokens = 65536;
    prefixes->done(parts_.cache->ListPrefixes(prefixes->owner, kMostRuns, kMostTokens));
  } else if (std::holds_alternative<FillEventsCommand>(command)) {
    parts_.cache->FillEvents(&parts_.events->mirror());
  } else if (auto* flush = std::get_if<FlushCommand>(&command)) {
    scheduler_.Flush(std::move(flush->done));
  }
}

}  // namespace kvasir
