#include "kvasir/engine.h"

#include <malloc.h>

#include <chrono>
#include <future>

#include "base/digest.h"
#include "base/hex.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "engine/adapter_store.h"
#include "engine/assembly.h"
#include "engine/draft_parts.h"
#include "engine/engine_on_thread.h"
#include "engine/generation_config.h"
#include "engine/memory_plan.h"
#include "engine/model_files.h"
#include "engine/start_parts.h"

namespace kvasir {

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
    KV_ASSIGN(assembly, Assemble(options, std::move(assembly.model), Need::kShapes));
    if (sequence_tokens) PlanSequences(assembly.cache, *sequence_tokens, assembly.plan);
    plans.push_back(assembly.plan);
  }
  return plans;
}

Status Engine::CheckAdapterNumbers(const EngineOptions& options) {
  if (options.adapters.load.empty()) return {};
  KV_ASSIGN(const Assembly assembly, Assemble(options, Need::kShapes));
  return CheckNumbers(assembly.adapters);
}

namespace {

SchedulerOptions SchedulerFor(const EngineOptions& options, const Assembly& assembly,
                              const Identity& identity, const EngineOnThread::Parts& parts) {
  SchedulerOptions scheduler{.cache_mode = options.cache_mode,
                             .schedule = options.schedule,
                             .admission = options.admission,
                             .kv_headroom = options.kv_headroom,
                             .target_step_ns = uint64_t{options.target_itl_ms} * 1'000'000,
                             .ctx_size = parts.card.ctx_size,
                             .num_tenants = options.max_tenants,
                             .parallel = options.parallel,
                             .max_rows = assembly.runner.max_rows,
                             .logit_rows = assembly.logit_rows,
                             .target = assembly.runner.target,
                             .tier = parts.tiers.seen(),
                             .identity = identity,
                             .identify = parts.identify,
                             .end_tokens = parts.card.eos,
                             .tokenizer = parts.text.tokenizer.get(),
                             .speculate = assembly.speculate,
                             .draft_max = options.draft_max,
                             .draft_model = parts.draft.parts,
                             .files = parts.files.get()};
  if (parts.card.no_retention.empty()) scheduler.heavy_context = parts.card.ctx_size;
  if (assembly.long_rope_after) {
    scheduler.long_rope = {*assembly.long_rope_after, parts.identify(Digest{}, true)};
  }
  return scheduler;
}

// Makes the workers of two runners, of which one computes at a time.
void ShareWorkers(RunnerOptions& one, RunnerOptions& other) {
  one.workers = other.workers =
      std::make_shared<ThreadPool>(one.threads, &EnterComputeThread, one.cpus);
}

// Returns the adapters of the start. nullptr: there are none, and none may come.
Result<std::unique_ptr<AdapterStore>> AdaptersFor(const EngineOptions& options,
                                                  const Assembly& assembly,
                                                  const ModelConfig& config,
                                                  const EngineOnThread::Parts& parts) {
  if (!options.adapters.any()) return nullptr;
  auto store = std::make_unique<AdapterStore>(options.adapters, config, assembly.plan.adapter_bytes,
                                              std::vector{parts.card.id}, parts.identify);
  KV_TRY(AddAdapters(options.adapters, assembly.adapters, *store));
  return store;
}

// Opens the sockets of KV events, where they are wanted, and makes the log that they are read from.
Status OpenEvents(const Assembly& assembly, const EngineOptions& options,
                  EngineOnThread::Parts* parts) {
  if (!assembly.events) return {};
  KV_ASSIGN(parts->events, KvEventPublisher::Open(*options.events));
  parts->event_log = std::make_unique<KvEventLog>(*assembly.events);
  return {};
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::Load(const EngineOptions& options) {
  const ComputeScope compute;
  KV_ASSIGN(Assembly assembly, Assemble(options));
  EngineOnThread::Parts parts;
  KV_TRY(OpenEvents(assembly, options, &parts));
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
  assembly.cache.secret = parts.cache_secret =
      assembly.remote ? FleetCacheSecret(assembly.remote->fleet) : secret.secret;
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
  if (assembly.draft) ShareWorkers(assembly.runner, assembly.draft->runner);
  const ModelConfig config = assembly.model.config;
  KV_ASSIGN(parts.runner, Runner::Create(std::move(assembly.model), assembly.runner, progress));

  if (text.valid()) {
    KV_ASSIGN(parts.text, text.get());
  }
  const Tokenizer* tokenizer = parts.text.tokenizer.get();
  parts.card.no_retention = WhyNoRetention(config, options.cache_mode);
  parts.card.no_spans = WhyNoSpans(parts.runner->source(), options.cache_mode);
  parts.card.eos = EndTokens(config, parts.text);
  parts.card.no_text = parts.text.no_text;
  parts.card.unknown_template = parts.text.unknown_template;
  parts.card.text_notes = TextNotes(parts.text, parts.card.decoder_start.has_value());
  if (assembly.draft) {
    KV_ASSIGN(parts.draft, LoadDraft(std::move(*assembly.draft), tokenizer, secret, options));
  }
  parts.files = WatchFiles(*parts.runner, parts.draft.runner.get(), parts.plan, options);
  KV_TRY(parts.files->CheckAll());
  parts.card.weights_shared = parts.runner->image() != nullptr;
  const IdentityParts content = ContentParts(config, weights, tokenizer);
  parts.card.content = ToHex(IdentityOf(content));
  const Identity identity = IdentityFor(content, assembly.plan, cache.layout);
  KV_ASSIGN(parts.tiers, TiersFor(assembly, secret, identity, options));
  cache.tier = parts.tiers.seen();
  cache.events = parts.event_log.get();
  KV_ASSIGN(parts.cache, KvCache::Create(std::move(cache)));
  parts.identify = [content, plan = assembly.plan, layout = parts.cache->layout()](
                       const Digest& adapters, bool is_long) {
    return IdentityWith(content, adapters, is_long, plan, layout);
  };
  parts.scheduler = SchedulerFor(options, assembly, identity, parts);
  KV_ASSIGN(parts.adapters, AdaptersFor(options, assembly, config, parts));
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
