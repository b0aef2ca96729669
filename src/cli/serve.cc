// kvasir serve: the server.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>

#include "access/browser_rules.h"
#include "access/credentials.h"
#include "base/log.h"
#include "base/memory_limit.h"
#include "base/result.h"
#include "chat/builtin_templates.h"
#include "cli/adapter_flags.h"
#include "cli/command.h"
#include "cli/engine_flags.h"
#include "cli/event_flags.h"
#include "cli/interrupt.h"
#include "cli/machine_limits.h"
#include "cli/serve_flags.h"
#include "cli/state_flags.h"
#include "eval/kept_quality.h"
#include "kvasir/machine.h"
#include "server/server.h"

namespace kvasir::cli {
namespace {

std::string ModeOf(const EngineOptions& options) {
  switch (options.cache_mode) {
    case CacheMode::kPrefix:
      return "prefix (shared by all requests)";
    case CacheMode::kSequence:
      return "sequence (nothing outlives its request)";
    case CacheMode::kNone:
      return "none (each step computes everything)";
  }
  return "";
}

// `has_cap`: it was asked for; of the default what can be used is used.
std::string DiskLine(const Engine& engine, bool has_cap) {
  const std::optional<TierStats> disk = engine.DiskStats();
  if (!disk) return "";
  std::string state;
  if (!disk->durable) state = IsInMemory(disk->folder) ? "; not durable (tmpfs)" : "; not durable";
  if (disk->state != TierStats::State::kOn) {
    state += fmt::format("; {}: {}", ToString(disk->state), disk->reason);
  }
  return fmt::format("disk     {}: {} of {}, AES-256-GCM, kept {} h{}; --disk none turns it off\n",
                     disk->folder, FormatBytes(disk->used_bytes), FormatBytes(disk->cap_bytes),
                     engine.options().disk->ttl_hours, state) +
         (has_cap ? UnusableCapLine("disk     ", disk->cap_bytes, engine.plan()) : "");
}

std::string RemoteLine(const Engine& engine) {
  const std::optional<RemoteStats> remote = engine.RemoteState();
  if (!remote) return "";
  const RemoteOptions& options = *engine.options().remote;
  std::string state = ToString(remote->state);
  if (remote->state == RemoteStats::State::kOff) state += ": " + remote->reason;
  const std::string scheme = options.url.substr(0, options.url.find("://"));
  const std::string kept = remote->kind == "s3" ? std::string("kept as the bucket's rules say")
                                                : fmt::format("kept {} h", options.ttl_hours);
  return fmt::format("remote   {}://{}: {}, AES-256-GCM, {}{}\n", scheme, remote->host, state, kept,
                     options.mode == RemoteMode::kRead ? "; read only" : "");
}

// Names the draft model and the adapters of the start.
std::string HelperLines(const Engine& engine) {
  const EngineOptions& options = engine.options();
  std::string lines;
  if (options.draft_model || options.draft_shape) {
    lines += fmt::format("drafts   by {}, at most {} tokens a step\n",
                         options.draft_model ? *options.draft_model : *options.draft_shape,
                         options.draft_max);
  }
  std::vector<std::string> names;
  for (const AdapterCard& card : engine.Adapters()) names.push_back(card.name);
  if (!names.empty()) lines += fmt::format("adapters {}\n", fmt::join(names, ", "));
  return lines;
}

std::string LimitLine(const MemoryLimit& limit) {
  if (limit.bytes == UINT64_MAX) return "";
  return fmt::format("limit    {}: {}\n", FormatBytes(limit.bytes), limit.source);
}

// Returns the lines before `listening on`: model, cache, memory, threads.
std::string SummaryOf(const Engine& engine, bool has_disk_cap) {
  const ModelCard& card = engine.card();
  const MemoryPlan& plan = engine.plan();
  const EngineOptions& options = engine.options();
  return fmt::format("model    {}: {}, {} parameters as {}, from {}\n", card.id, card.architecture,
                     card.parameters, card.dtype, card.path) +
         fmt::format("cache    {}: {} of KV as {} in {} blocks, {} tokens\n", ModeOf(options),
                     FormatBytes(plan.kv_bytes), plan.kv_format, plan.num_blocks, plan.max_tokens) +
         fmt::format(
             "memory   {} at most, {} of it for the process: --kv-memory {}, requests {}, "
             "weights {}\n",
             FormatBytes(plan.total_bytes + plan.process_bytes), FormatBytes(plan.process_bytes),
             FormatBytes(plan.kv_memory_bytes), FormatBytes(plan.request_bytes),
             FormatBytes(plan.weights_bytes)) +
         LimitLine(ReadMemoryLimit()) +
         (plan.context_kv_memory_bytes
              ? fmt::format(
                    "room     requests of at most {} tokens: the cache is too small for the "
                    "context of {}; that needs --kv-memory {}\n",
                    plan.max_tokens, plan.ctx_size, *plan.context_kv_memory_bytes)
              : std::string()) +
         DiskLine(engine, has_disk_cap) + RemoteLine(engine) + HelperLines(engine) +
         fmt::format("runs     context {} tokens, {} at once, {}, target {}\n", plan.ctx_size,
                     CountText(plan.parallel, "sequence"),
                     CountText(options.threads ? *options.threads : DefaultThreads(), "thread"),
                     engine.target());
}

// Says which flags and which file decide how to sample; empty: none does.
std::string SamplingLine(const SamplingDefaults& model, const SamplingDefaults& flags) {
  std::string line;
  if (const std::optional<std::string> text = flags.Text()) line = *text + " (flags)";
  if (const std::optional<std::string> text = model.Text()) {
    line += (line.empty() ? "" : ", else ") + *text +
            " (generation_config.json; --generation-config none: without it)";
  }
  return line.empty() ? line : "sampling " + line + " unless a request says otherwise\n";
}

// Returns how many bytes a second this machine reads. The first server on it measures that before
// it serves, in memory that the cache will have: nothing of that is used yet.
std::optional<double> ReadLimitOf(const EngineOptions& options, const MemoryPlan& plan) {
  std::optional<MachineLimits> limits = KeptLimits(options.cache_dir, options.threads);
  if (!limits) {
    limits = MeasureReading(options.threads, plan.kv_bytes);
    if (limits) (void)KeepLimits(options.cache_dir, *limits);  // else the next start measures it
  }
  return limits ? std::optional(limits->read_bytes_per_s) : std::nullopt;
}

// Ends the process as a second signal asks, without the engine's end, which writes for up to 10 s.
// The disk is as after kill -9: what is stored will be found.
[[noreturn]] void EndNow(const Engine& engine) {
  const std::optional<TierStats> disk = engine.DiskStats();
  if (disk && disk->pending_blocks > 0) {
    Log(LogLevel::kWarning,
        "stopped by a second signal: what is not stored on the disk yet is dropped",
        LogField("dropped", disk->pending_blocks), LogField("folder", disk->folder));
  }
  std::_Exit(kExitInterrupted);
}

Result<int> Serve(const Args& args) {
  SetLogStyle(LogStyle::kServer);
  KV_ASSIGN(EngineOptions engine_options, EngineOptionsOf(args, DiskDefault::kCacheFolder));
  ReadServeAdapterFlags(args, &engine_options);
  engine_options.on_model_change = [](const std::string& text) { Log(LogLevel::kWarning, text); };
  KV_ASSIGN(ServerOptions options, ServerOptionsOf(args));
  KV_TRY(ReadEventTenant(args, options, &engine_options));
  ExitOnInterrupt();  // while the model loads; then the server owns the signal
  // Service checks it too, and again when the file of keys is reloaded; here, before the model
  // loads.
  KV_TRY(Credentials::CheckCount(options.api_keys, options.keys, engine_options.max_tenants));
  KV_ASSIGN(const std::unique_ptr<Engine> engine, LoadEngine(engine_options));
  if (const auto& word = engine->card().unknown_template; word && !options.chat_template) {
    return Fail(Code::kInvalidArgument,
                "--model: its chat template is '{}', which is neither a known name ({}) nor the "
                "text of a template; give one with --chat-template or --chat-template-file",
                *word, fmt::join(BuiltinTemplateNames(), ", "));
  }
  options.summary = SummaryOf(*engine, args.Has("disk-cap"));
  options.read_limit = ReadLimitOf(engine_options, engine->plan());
  for (const std::string& note : engine->card().text_notes) {
    if (engine->tokenizer() != nullptr && options.chat_template) continue;
    options.summary += "text     " + note + "\n";
  }
  options.summary += SamplingLine(engine->card().sampling, options.defaults.sampling);
  if (const std::string quality = eval::QualityLine(*engine); !quality.empty()) {
    options.summary += "quality  " + quality + "\n";
  }
  if (const std::string loss = eval::RetentionLine(*engine); !loss.empty()) {
    options.summary += "keeps    " + loss + "\n";
  }
  const auto outside = std::ranges::find_if_not(options.hosts, IsLoopbackHost);
  if (options.api_keys.empty() && !options.keys_path && outside != options.hosts.end()) {
    options.summary += "access   no API key: all who reach " + *outside +
                       " may use this server; --api-key KEY or --keys F.json asks for one\n";
  }
  if (const auto events = engine->EventStats()) {
    options.summary += EventLines(*engine_options.events, *events);
  }
  if (options.tls) options.summary += "tls      " + options.tls->Text() + "\n";
  options.on_overdue = [&engine] { EndNow(*engine); };
  const Status served = RunServer(options, *engine);
  if (!served && served.error().code == Code::kCancelled) EndNow(*engine);
  if (const auto disk = engine->DiskStats(); served && disk) {
    EndOnSignal("stopped by a second signal: what is not stored on the disk yet is dropped\n");
    if (disk->pending_blocks > 0) {
      Log(LogLevel::kInfo, "storing what is queued for the disk; a second signal drops it",
          LogField("blocks", disk->pending_blocks), LogField("folder", disk->folder));
    }
  }
  KV_TRY(served);
  return kExitDone;  // the engine's end writes what is queued for the disk
}

Result<int> RunServe(const Args& given) {
  IgnoreBrokenPipes();  // the reader of the log may exit
  Args args = given;
  if (const auto path = args.Text("config")) KV_TRY(args.MergeConfig(*path, ServeFlags()));
  KV_TRY(TakeCredentials(&args));
  Result<int> status = Serve(args);
  if (status || !status.error().field) return status;
  // An error about a value of the file names the file and its key.
  std::string flag = *status.error().field;
  std::ranges::replace(flag, '_', '-');
  if (args.IsFromConfig(flag)) status.error().field = args.Written(flag);
  return status;
}

}  // namespace

Command ServeCommand() {
  return {"serve",
          "an OpenAI-compatible server on http://127.0.0.1:8080",
          "serve --model ./my-model --kv-memory 4GiB",
          ServeFlags(),
          RunServe,
          "llama-server's flags work too (-m, -c, -np, -ctk, -hf and more): "
          "docs/from-llama-server.md lists them all.",
          0,
          ServeGroups()};
}

}  // namespace kvasir::cli
