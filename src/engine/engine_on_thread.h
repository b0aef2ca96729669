// EngineOnThread: the Engine, with one thread for all steps.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "base/check.h"
#include "base/digest.h"
#include "base/mutex.h"
#include "base/result.h"
#include "base/secret.h"
#include "engine/adapter_store.h"
#include "engine/caller_counts.h"
#include "engine/draft_parts.h"
#include "engine/erased_owners.h"
#include "engine/model_files.h"
#include "engine/start_parts.h"
#include "events/kv_event_publisher.h"
#include "import/file_watch.h"
#include "kvasir/engine.h"
#include "model/runner.h"
#include "schedule/backlog.h"
#include "schedule/kv_quotas.h"
#include "schedule/queue_places.h"
#include "schedule/request.h"
#include "schedule/scheduler.h"
#include "schedule/seen_prompts.h"
#include "simd/target.h"

namespace kvasir {

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
    Tiers tiers;                               // the cache's
    std::unique_ptr<KvEventLog> event_log;     // the cache's; nullptr: no events are published
    std::unique_ptr<KvEventPublisher> events;  // nullptr: the same
    std::unique_ptr<KvCache> cache;
    DraftModelOnEngine draft;
    SchedulerOptions scheduler;
    AdapterStore::Identify identify;
    std::unique_ptr<AdapterStore> adapters;  // nullptr: no room for any
    Secret prompt_secret{};                  // of SeenPrompts' hashes
    Secret cache_secret{};                   // the cache's
  };

  explicit EngineOnThread(Parts parts);
  ~EngineOnThread() override;
  // Starts the thread. REQUIRES: called once, first. kExhausted when the system refuses the thread.
  Status Start();

  Status CompileFormats(std::span<GenerateRequest> requests) override;
  Result<std::vector<RequestId>> SubmitAll(std::vector<GenerateRequest> requests,
                                           IndexedSink sink) override;
  void Cancel(RequestId id) override { Post(CancelCommand{id}); }
  void Drain() override;
  void Erase(std::string_view owner, ErasureSink done) override;
  void Erase(std::string_view owner) override;
  void Forget(ForgetRequest request, ErasureSink done) override;
  void ListSequences(std::optional<std::string> tenant, SequencesSink done) override {
    Post(ListCommand{std::move(tenant), std::move(done)});
  }
  void ListPrefixes(std::string owner, PrefixesSink done) override {
    Post(PrefixesCommand{std::move(owner), std::move(done)});
  }
  void Flush(FlushSink done) override;
  uint64_t GrammarBytes() const override { return formats_.bytes(); }
  std::optional<TierStats> DiskStats() const override {
    const auto& disk = parts_.tiers.disk.tier;
    return disk ? std::optional(disk->Stats()) : std::nullopt;
  }
  std::optional<RemoteStats> RemoteState() const override {
    const auto& remote = parts_.tiers.remote;
    return remote ? std::optional(remote->Remote()) : std::nullopt;
  }
  std::optional<KvEventsStats> EventStats() const override {
    return parts_.events ? std::optional(parts_.events->Stats()) : std::nullopt;
  }
  std::optional<uint64_t> RemoteEpochOf(std::string_view owner) const override {
    const auto& remote = parts_.tiers.remote;
    return remote ? remote->EpochOf(KvCache::OwnerOf(owner)) : std::nullopt;
  }
  std::vector<ErasedElsewhere> ListErasedElsewhere() const override {
    const MutexLock lock(mutex_);
    return erased_owners_.List();
  }
  void EndErasedElsewhere(const ErasedElsewhere& erased) override;
  void ReserveDisk(uint64_t bytes) override {
    if (const auto& disk = parts_.tiers.disk.tier) disk->Reserve(bytes);
  }
  Status CheckRoom(const std::string& tenant) const override;
  void CountRejection(RejectReason reason, const std::optional<std::string>& tenant) override;
  void CountMiss(MissReason reason, uint32_t computed_tokens) override;
  void CountVolatile(uint32_t tokens) override;
  Status SetTenants(const TenantTable& tenants) override;
  Status CheckModel() override { return parts_.files->CheckLately(); }
  Result<AdapterCard> LoadAdapter(const AdapterSource& source, AdapterNames names) override;
  Status UnloadAdapter(std::string_view name) override;
  Status SetAdapterScales(std::span<const AdapterChoice> choices) override;
  std::vector<AdapterCard> Adapters() const override;
  Status ChooseAdapters(GenerateRequest& request) const override;
  EngineStats Stats() const override;
  const MemoryPlan& plan() const override { return parts_.plan; }
  const ModelCard& card() const override { return parts_.card; }
  const EngineOptions& options() const override { return parts_.options; }
  const Tokenizer* tokenizer() const override { return parts_.text.tokenizer.get(); }
  const ChatTemplate* chat_template() const override { return parts_.text.chat_template.get(); }
  const char* target() const override { return NameOf(parts_.target).data(); }
  void CheckInvariants() override;

 private:
  struct CancelCommand {
    RequestId id;
  };
  struct CancelAllCommand {};
  struct StopSpareCommand {};
  struct EraseCommand {
    std::string owner;
    ErasureSink done;
  };
  struct ForgetCommand {
    ForgetRequest request;
    std::shared_ptr<const KeptPrompts> kept;
    ErasureSink done;
  };
  struct TenantsCommand {
    TenantTable tenants;
    std::optional<Digest> published = {};  // whose blocks KV events tell of; absent: of none
  };
  struct CheckCommand {
    std::promise<void> done;
  };
  struct FillEventsCommand {};
  struct FlushCommand {
    FlushSink done;
  };
  struct ListCommand {
    std::optional<std::string> tenant;
    SequencesSink done;
  };
  struct PrefixesCommand {
    std::string owner;
    PrefixesSink done;
  };
  using Command =
      std::variant<std::unique_ptr<Request>, CancelCommand, CancelAllCommand, StopSpareCommand,
                   EraseCommand, ForgetCommand, TenantsCommand, CheckCommand, ListCommand,
                   PrefixesCommand, FillEventsCommand, FlushCommand>;

  // What was taken and has not ended.
  struct Outstanding {
    uint64_t next_id = 1;
    uint32_t requests = 0;       // without their last event
    uint64_t request_bytes = 0;  // of those; a part of request_memory_bytes
    uint32_t erasures = 0;       // without a called sink
  };
  struct TenantShares {
    TenantTable rules;
    KvQuotas quotas;
  };
  // What the scheduler said last.
  struct Published {
    EngineStats stats;
    Backlog backlog;
  };

  // Counts a refusal.
  void CountRefusal(RejectReason reason, const std::optional<std::string>& tenant)
      KV_REQUIRES(mutex_);
  tl::unexpected<Error> Reject(RejectReason reason, const std::string& tenant,
                               tl::unexpected<Error> error) KV_REQUIRES(mutex_);
  // Checks that no sink waits for the engine's thread: the wait would never end.
  void CheckMayWait() const { KV_CHECK(std::this_thread::get_id() != thread_.get_id()); }
  void Post(Command command);
  uint32_t MostBlocksOf(const GenerateRequest& spec) const;
  TenantRules RulesOf(const std::string& tenant) const KV_REQUIRES(mutex_);
  Status CheckQuota(std::span<const std::unique_ptr<Request>> requests) const KV_REQUIRES(mutex_);
  Backlog::Job JobOf(const Request& request, const Backlog& backlog) const;
  Error Full(Error error) const;
  uint64_t MostWaitingBytes() const { return parts_.options.request_memory_bytes / kWaitingShare; }
  Status CheckQueue(const std::string& tenant, uint64_t count, uint64_t bytes) const
      KV_REQUIRES(mutex_);
  Status CheckLoad(const std::string& tenant, std::span<const std::unique_ptr<Request>> checked,
                   std::span<const SeenPrompts::Beginnings> beginnings, uint64_t bytes)
      KV_REQUIRES(mutex_);
  Status CheckTimes(std::span<const std::unique_ptr<Request>> requests) const KV_REQUIRES(mutex_);
  bool SharesCache(const GenerateRequest& spec) const {
    return parts_.options.cache_mode == CacheMode::kPrefix && spec.reuse != Reuse::kNothing;
  }
  // Gives the requests, which are of one tenant, to the thread: all, or none without memory.
  Result<std::vector<RequestId>> PushAll(std::vector<std::unique_ptr<Request>> checked,
                                         uint64_t bytes) KV_REQUIRES(mutex_);
  uint32_t TokensFromDisk(const Request& request) const;
  Result<std::shared_ptr<const AdapterSet>> AdaptersOf(const GenerateRequest& spec) const;
  Status TakeAdapters(Request& request) const;
  SeenPrompts::Beginnings BeginningsOf(const Request& request,
                                       std::span<const TokenId> tokens) const;
  void RememberAnswers(const Request& request);
  void CountEnded(const Scheduler::Ended& ended);
  void Run();
  void Apply(Command& command);
  void EraseHere();
  void EndEraseHere(const ErasedOwner& erased, const Erasure& erasure);
  Scheduler::Ended Step();

  Parts parts_;
  const HmacKey prompt_key_;
  AnswerFormats formats_;
  Scheduler scheduler_;  // engine thread

  mutable Mutex mutex_;
  std::condition_variable wake_, drained_;
  std::deque<Command> commands_ KV_GUARDED_BY(mutex_);
  Outstanding outstanding_ KV_GUARDED_BY(mutex_);
  TenantShares tenants_ KV_GUARDED_BY(mutex_);
  SeenPrompts seen_prompts_ KV_GUARDED_BY(mutex_);
  QueuePlaces places_ KV_GUARDED_BY(mutex_);  // requests whose sink has not had the last event
  CallerCounts counts_ KV_GUARDED_BY(mutex_);
  bool draining_ KV_GUARDED_BY(mutex_) = false;
  bool stopping_ KV_GUARDED_BY(mutex_) = false;
  // News of the tiers since the engine thread looked; at first, what opening them found.
  bool tier_progress_ KV_GUARDED_BY(mutex_) = true;
  ErasedOwners erased_owners_ KV_GUARDED_BY(mutex_);

  mutable Mutex stats_mutex_;
  Published published_ KV_GUARDED_BY(stats_mutex_);

  std::thread thread_;
};

}  // namespace kvasir
