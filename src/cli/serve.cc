// kvasir serve: the server.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <linux/magic.h>
#include <sys/statfs.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "access/browser_rules.h"
#include "access/credentials.h"
#include "access/keys_file.h"
#include "base/log.h"
#include "base/memory_limit.h"
#include "base/result.h"
#include "chat/builtin_templates.h"
#include "cli/build_info.h"
#include "cli/command.h"
#include "cli/engine_flags.h"
#include "cli/interrupt.h"
#include "cli/machine_limits.h"
#include "cli/template_flags.h"
#include "eval/kept_quality.h"
#include "kvasir/machine.h"
#include "server/option_check.h"
#include "server/server.h"

namespace kvasir::cli {
namespace {

std::vector<Flag> TimeFlags() {
  return {{"timeout-ms", "MS", "time limit of requests that give none (default: none)"},
          {"max-timeout-ms", "MS", "the longest time limit; requests without one get this"},
          {"sse-ping-s", "S",
           "a stream that was silent for S seconds gets a comment, so that proxies keep it "
           "(default 15; 0: never)"},
          {"drain-delay-s", "S",
           "after SIGTERM, take requests for S seconds more while /ready says 503 (default 0)"},
          {"drain-timeout-s", "S",
           "then wait at most S seconds for what runs (default 60; 0: as long as it takes)"}};
}

Status ReadTimes(const Args& args, ServerOptions* options) {
  constexpr uint64_t kDayMs = 86'400'000;
  if (args.Has("timeout-ms")) {
    KV_ASSIGN(options->timeout_ms, args.Uint("timeout-ms", 1, kDayMs, 1));
  }
  if (args.Has("max-timeout-ms")) {
    KV_ASSIGN(options->max_timeout_ms, args.Uint("max-timeout-ms", 1, kDayMs, 1));
  }
  if (options->timeout_ms && options->max_timeout_ms &&
      *options->timeout_ms > *options->max_timeout_ms) {
    return FailField(Code::kInvalidArgument, "timeout-ms", "{} is above --max-timeout-ms {}",
                     *options->timeout_ms, *options->max_timeout_ms);
  }
  KV_ASSIGN(options->sse_ping_s, args.Uint("sse-ping-s", 0, 3600, options->sse_ping_s));
  KV_ASSIGN(options->drain_delay_s, args.Uint("drain-delay-s", 0, 3600, options->drain_delay_s));
  KV_ASSIGN(options->drain_timeout_s,
            args.Uint("drain-timeout-s", 0, 86400, options->drain_timeout_s));
  return {};
}

std::vector<Flag> SessionFlags() {
  return {{"sessions", "N", "sessions kept at once (default 1024; 0: none)"},
          {"session-ttl", "HOURS",
           "sessions that nobody used for so long are deleted (default 24; 0: never)"},
          {"prepare", "",
           "after a chat completion, compute what the next turn will show of the chat, while "
           "nothing else waits (sessions have a field for it)",
           FlagKind::kSwitch}};
}

std::vector<Flag> ServeFlags() {
  return Join(
      {{{"host", "ADDRESS",
         "where to listen (default 127.0.0.1; 0.0.0.0: everywhere); may be given several times, or "
         "a list with commas",
         FlagKind::kList},
        {"port", "N", "default 8080; 0: the system chooses one"},
        {"alias", "NAME",
         "another name of the model; may be given several times, or a list with commas; *: any "
         "name means it",
         FlagKind::kList},
        {"tags", "TAG,...", "words about the model, which /v1/models shows"},
        {"api-key", "KEY",
         "require this API key; may be given several times; each key has a separate cache",
         FlagKind::kList},
        {"api-key-file", "F", "more API keys, one on each line"},
        {"keys", "F.json",
         "tenants: their keys (as digests), shares and limits (docs/tenants.md); 'kvasir key new' "
         "makes a key; SIGHUP reloads the file"},
        {"admin-key", "KEY",
         "require this key for /metrics, which sums over all API keys (needed with several keys)"},
        {"cors-origin", "ORIGIN",
         "web pages of this origin may call (https://app.example); localhost: pages of this "
         "machine; may be given several times. Or none; or * (default)",
         FlagKind::kList},
        {"allowed-host", "NAME",
         "serve this host name too, not only localhost; may be given several times. A server that "
         "listens on loopback serves no other names",
         FlagKind::kList},
        {"no-slots", "", "/slots is 501", FlagKind::kSwitch},
        {"slot-save-path", "DIR",
         "take POST /slots/N?action=save|restore|erase; files of slots are in this folder"},
        {"verbose", "",
         "answers have __verbose with the prompt's text, and the log has level debug unless "
         "--log-level says otherwise",
         FlagKind::kSwitch},
        {"reasoning-format", "none|deepseek|deepseek-legacy|auto",
         "where thoughts are, unless a request says otherwise: in content, in reasoning_content, "
         "in both; auto (default) is deepseek"},
        {"reasoning-budget", "N",
         "most tokens of a thought, unless a request says otherwise (-1: any number)"},
        {"no-page", "", "no page for browsers at /, only the API", FlagKind::kSwitch},
        {"otlp-traces-endpoint", "URL",
         "send spans of requests to this collector, such as http://localhost:4318/v1/traces"},
        {"trace-sample", "SHARE",
         "share of the requests without a traceparent that have spans (default 1)"},
        {"shape", "S",
         "random weights of this shape, no files and no text, to measure a server: prompts are "
         "token "
         "ids (names and --weights as in 'kvasir bench')"},
        {"config", "F.json",
         "a JSON object whose keys are these flags; flags on the command line win"}},
       FetchFlags(),
       TemplateFlags(),
       DefaultFlags(),
       GenerationConfigFlags(),
       LoadFlags(),
       CacheFlags(),
       SchedulingFlags(),
       QueueFlags(),
       TimeFlags(),
       RequestFlags(),
       SessionFlags(),
       DiskFlags(DiskDefault::kCacheFolder),
       AbsentFlags()});
}

// Reads the keys of a file, one on each line; skips empty lines.
Status ReadKeys(const std::string& path, std::vector<std::string>* keys) {
  KV_ASSIGN(const std::string text, ReadFlagFile("api-key-file", path, "a text file"));
  std::istringstream lines(text);
  size_t number = 0, found = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty()) continue;
    if (const auto fault = KeyFault(line)) {
      return Fail(Code::kInvalidArgument, "--api-key-file: {} line {}: the key {}", path, number,
                  *fault);
    }
    keys->push_back(std::move(line));
    ++found;
  }
  if (found > 0) return {};
  return Fail(Code::kInvalidArgument, "--api-key-file: {} has no key; write one key on each line",
              path);
}

// The parts between commas of all texts.
std::vector<std::string> PartsOf(const std::vector<std::string>& lists) {
  std::vector<std::string> parts;
  for (const std::string& list : lists) {
    for (size_t begin = 0; begin <= list.size();) {
      const size_t end = std::min(list.find(',', begin), list.size());
      std::string part = list.substr(begin, end - begin);
      part.erase(0, part.find_first_not_of(' '));
      part.erase(part.find_last_not_of(' ') + 1);
      parts.push_back(std::move(part));
      begin = end + 1;
    }
  }
  return parts;
}

Result<ServerOptions> ServerOptionsOf(const Args& args) {
  ServerOptions options;
  if (args.Has("host")) options.hosts = PartsOf(args.List("host"));
  KV_ASSIGN(const uint64_t port, args.Uint("port", 0, 65535, options.port));
  options.port = static_cast<uint16_t>(port);
  options.aliases = PartsOf(args.List("alias"));
  if (const auto tags = args.Text("tags")) options.tags = PartsOf({*tags});
  options.api_keys = args.List("api-key");
  if (const auto path = args.Text("api-key-file")) KV_TRY(ReadKeys(*path, &options.api_keys));
  options.admin_key = args.Text("admin-key");
  if (options.admin_key && options.admin_key->empty()) {
    return Fail(Code::kInvalidArgument, "--admin-key: is empty; give a key or leave it out");
  }
  options.otlp_traces_endpoint = args.Text("otlp-traces-endpoint");
  if (options.otlp_traces_endpoint && options.otlp_traces_endpoint->empty()) {
    return Fail(Code::kInvalidArgument,
                "--otlp-traces-endpoint: is empty; give an address or leave it out");
  }
  KV_ASSIGN(options.trace_sample, args.Float("trace-sample", {0, 1}, 1));
  if (args.Has("trace-sample") && !options.otlp_traces_endpoint) {
    return Fail(Code::kInvalidArgument, "--trace-sample: needs --otlp-traces-endpoint");
  }
  if (const auto path = args.Text("keys")) {
    options.keys_path = path;
    KV_ASSIGN(options.keys, ReadKeysFile(*path));
    KV_TRY(Credentials::Check(options.api_keys, options.admin_key, options.keys));
    for (size_t i = 0; i < options.keys.tenants.size(); ++i) {
      if (std::ranges::count(options.keys.keys, i, &KeyEntry::tenant) > 0) continue;
      Log(LogLevel::kWarning,
          fmt::format("--keys: {}: the tenant '{}' has no keys, so nobody can use it", *path,
                      options.keys.tenants[i].name));
    }
  }
  KV_TRY(ReadTimes(args, &options));
  KV_ASSIGN(const uint64_t sessions, args.Uint("sessions", 0, 1 << 20, options.max_sessions));
  options.max_sessions = static_cast<uint32_t>(sessions);
  KV_ASSIGN(options.session_ttl_hours,
            args.Uint("session-ttl", 0, 87'600, options.session_ttl_hours));
  options.prepare = args.Has("prepare");
  options.cors_origins = args.List("cors-origin");
  options.has_slots = !args.Has("no-slots");
  options.has_page = !args.Has("no-page");
  options.allowed_hosts = args.List("allowed-host");
  KV_TRY(CheckOptions(options));
  KV_ASSIGN(options.chat_template, ReadTemplate(args));
  KV_ASSIGN(options.chat_template_kwargs, ReadTemplateVariables(args));
  KV_ASSIGN(options.template_now_unix_s, ReadTemplateDate(args));
  KV_ASSIGN(options.defaults, ReadDefaults(args));
  if (args.Has("reasoning-budget") && args.Text("reasoning-budget") != "-1") {
    KV_ASSIGN(const uint64_t most, args.Uint("reasoning-budget", 0, UINT32_MAX, 0));
    options.defaults.max_thought_tokens = static_cast<uint32_t>(most);
  }
  options.slot_save_path = args.Text("slot-save-path");
  options.defaults.verbose = args.Has("verbose");
  if (const auto name = args.Text("reasoning-format")) {
    const auto form = ThoughtFormOf(*name);
    if (!form) {
      return Fail(Code::kInvalidArgument,
                  "--reasoning-format: '{}' is not none, deepseek, deepseek-legacy or auto", *name);
    }
    options.defaults.thoughts = *form;
  }
  options.version = kVersion;
  options.on_request = [](std::string_view line) { Log(LogLevel::kInfo, line); };
  return options;
}

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

bool IsTmpfs(const std::string& folder) {
  struct statfs about;
  return statfs(folder.c_str(), &about) == 0 && about.f_type == TMPFS_MAGIC;
}

std::string DiskLine(const Engine& engine) {
  const std::optional<TierStats> disk = engine.DiskStats();
  if (!disk) return "";
  std::string state;
  if (!disk->durable) state = IsTmpfs(disk->folder) ? "; not durable (tmpfs)" : "; not durable";
  if (disk->state != TierStats::State::kOn) {
    state += fmt::format("; {}: {}", ToString(disk->state), disk->reason);
  }
  return fmt::format("disk     {}: {} of {}, AES-256-GCM, kept {} h{}; --disk none turns it off\n",
                     disk->folder, FormatBytes(disk->used_bytes), FormatBytes(disk->cap_bytes),
                     engine.options().disk->ttl_hours, state) +
         UnusableCapLine("disk     ", disk->cap_bytes, engine.plan());
}

std::string LimitLine(const MemoryLimit& limit) {
  if (limit.bytes == UINT64_MAX) return "";
  return fmt::format("limit    {}: {}\n", FormatBytes(limit.bytes), limit.source);
}

// The lines before `listening on`: model, cache, memory, threads.
std::string SummaryOf(const Engine& engine) {
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
         DiskLine(engine) +
         fmt::format("runs     context {} tokens, {} at once, {}, target {}\n", plan.ctx_size,
                     CountText(plan.parallel, "sequence"),
                     CountText(options.threads ? *options.threads : DefaultThreads(), "thread"),
                     engine.target());
}

// Which flags and which file say how to sample; empty: none does.
std::string SamplingLine(const SamplingDefaults& model, const SamplingDefaults& flags) {
  std::string line;
  if (const std::optional<std::string> text = flags.Text()) line = *text + " (flags)";
  if (const std::optional<std::string> text = model.Text()) {
    line += (line.empty() ? "" : ", else ") + *text +
            " (generation_config.json; --generation-config none: without it)";
  }
  return line.empty() ? line : "sampling " + line + " unless a request says otherwise\n";
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

Result<int> RunServe(const Args& given) {
  IgnoreBrokenPipes();  // the reader of the log may exit
  Args args = given;
  if (const auto path = args.Text("config")) KV_TRY(args.MergeConfig(*path, ServeFlags()));
  SetLogStyle(LogStyle::kServer);
  KV_ASSIGN(EngineOptions engine_options, EngineOptionsOf(args, DiskDefault::kCacheFolder));
  WarnOfThreads(engine_options);
  engine_options.on_model_change = [](const std::string& text) { Log(LogLevel::kWarning, text); };
  KV_ASSIGN(ServerOptions options, ServerOptionsOf(args));
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
  options.summary = SummaryOf(*engine);
  if (const auto limits = KeptLimits(engine_options.cache_dir, engine_options.threads)) {
    options.read_limit = limits->read_bytes_per_s;
  }
  for (const std::string& note : engine->card().text_notes) {
    if (engine->tokenizer() != nullptr && options.chat_template) continue;
    options.summary += "text     " + note + "\n";
  }
  options.summary += SamplingLine(engine->card().sampling, options.defaults.sampling);
  if (const std::string quality = eval::QualityLine(*engine); !quality.empty()) {
    options.summary += "quality  " + quality + "\n";
  }
  const auto outside = std::ranges::find_if_not(options.hosts, IsLoopbackHost);
  if (options.api_keys.empty() && !options.keys_path && outside != options.hosts.end()) {
    options.summary += "access   no API key: whoever reaches " + *outside +
                       " may use this server; --api-key KEY or --keys F.json asks for one\n";
  }
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

}  // namespace

Command ServeCommand() {
  return {"serve",
          "an OpenAI-compatible server on http://127.0.0.1:8080",
          "serve --model ./my-model --kv-memory 4GiB",
          ServeFlags(),
          RunServe,
          "llama-server's flags work too (-m, -c, -np, -ctk, -hf and more): "
          "docs/from-llama-server.md lists them all."};
}

}  // namespace kvasir::cli
