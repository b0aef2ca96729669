#include "cli/serve_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "access/browser_rules.h"
#include "access/credentials.h"
#include "access/keys_file.h"
#include "base/ascii.h"
#include "base/log.h"
#include "base/result.h"
#include "cli/adapter_flags.h"
#include "cli/build_info.h"
#include "cli/event_flags.h"
#include "cli/listen_flags.h"
#include "cli/sampling_flags.h"
#include "cli/shared_flags.h"
#include "cli/state_flags.h"
#include "cli/template_flags.h"
#include "cli/tracing_variables.h"
#include "server/option_check.h"

namespace kvasir::cli {
namespace {

std::vector<Flag> DefaultFlags() {
  return {{"max-tokens", "N",
           "at most N tokens of answer (default: the room that is left; /v1/completions: 16)"},
          {"temperature", "T",
           "0: always the likeliest token (default 1). This and the flags up to "
           "--frequency-penalty win over generation_config.json"},
          {"seed", "S", "the same seed gives the same text (default: a new one each time)"},
          {"top-k", "N", "only the N likeliest tokens (default 0: all)"},
          {"top-p", "P", "only the likeliest tokens that make up P (default 1)"},
          {"min-p", "P", "only tokens at least P times as likely as the likeliest (default 0)"},
          {"repetition-penalty", "X", "over prompt and answer (default 1: none)"},
          {"presence-penalty", "X", "over the answer (default 0)"},
          {"frequency-penalty", "X", "over the answer (default 0)"},
          {"pooling", "last|mean",
           "what an embedding is made of: the last token's final hidden state, or the mean of all "
           "(default: as the model's files say, else last)"}};
}

std::vector<Flag> TimeFlags() {
  return {{"timeout-ms", "MS", "time limit of requests that give none (default: none)"},
          {"max-timeout-ms", "MS", "the longest time limit; requests without one get this"},
          Expert({"sse-ping-s", "S",
                  "a stream that was silent for S seconds gets a comment, so that proxies keep it "
                  "(default 15; 0: never)"}),
          Expert({"drain-delay-s", "S",
                  "after SIGTERM, take requests for S seconds more while /ready says 503 (default "
                  "0)"}),
          {"drain-timeout-s", "S",
           "after SIGTERM, wait at most S seconds for the requests that run (default 60; 0: as "
           "long as they take)"}};
}

std::vector<Flag> SessionFlags() {
  return {{"sessions", "N", "sessions kept at once (default 1024; 0: none)"},
          {"responses", "N",
           "responses (/v1/responses) stored at once; the oldest of a caller go for its newer ones "
           "(default 1024; 0: none)"},
          {"session-ttl", "HOURS",
           "sessions that were not used for so long are deleted (default 24; 0: never)"},
          {"prepare", "",
           "after a chat completion, compute what the next turn will show of the chat, while "
           "nothing else waits (sessions have a field for it)",
           FlagKind::kSwitch}};
}

std::vector<Flag> LineFlags() {
  return {{"drop-lines", "NAME|PATTERN",
           "leave lines that change with each prompt out of system messages: date, tokens-left, "
           "id, billing, or lines in which a regular expression matches; may be given several "
           "times",
           FlagKind::kList},
          {"move-lines", "NAME|PATTERN",
           "write such lines at the end of the last message of the user instead; may be given "
           "several times",
           FlagKind::kList}};
}

// Returns the flags that say who may call.
std::vector<Flag> AccessFlags() {
  return {
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
       FlagKind::kList}};
}

}  // namespace

std::vector<Flag> ServeFlags() {
  return Join(
      {ListenFlags(),
       {{"alias", "NAME",
         "another name of the model; may be given several times, or a list with commas; * accepts "
         "every name",
         FlagKind::kList},
        {"tags", "TAG,...", "words about the model, which /v1/models shows"},
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
        {"no-page", "", "serve only the API: no page for browsers at /", FlagKind::kSwitch},
        {"otlp-traces-endpoint", "URL",
         "send spans of requests to this collector, such as http://localhost:4318/v1/traces"},
        Expert({"trace-sample", "SHARE",
                "share of the requests without a traceparent that have spans (default 1)"}),
        {"shape", "S",
         "random weights of this shape, no files and no text, to measure a server: prompts are "
         "token ids (names and --weights as in 'kvasir bench')"},
        {"config", "F.json",
         "a JSON object whose keys are these flags; flags on the command line win"}},
       AccessFlags(),
       FetchFlags(),
       TemplateFlags(),
       DefaultFlags(),
       GenerationConfigFlags(),
       LoadFlags(),
       AdapterFlags(),
       ServeAdapterFlags(),
       CacheFlags(),
       SchedulingFlags(),
       QueueFlags(),
       TimeFlags(),
       RequestFlags(),
       SessionFlags(),
       LineFlags(),
       DiskFlags(DiskDefault::kCacheFolder),
       StateFlags(),
       RemoteFlags(),
       EventFlags(),
       AbsentFlags()});
}

std::vector<FlagGroup> ServeGroups() {
  return {{"Every day", "model host port ctx-size kv-memory api-key"},
          {"Model", "hf-repo weights threads alias tags shape"},
          {"Listening", "tls-cert tls-key no-page no-slots slot-save-path"},
          {"Memory",
           "parallel kv-format kv-skip-layers cache eviction retention request-memory "
           "session-memory head-memory grammar-memory allow-overcommit"},
          {"Disk", "disk disk-cap disk-ttl disk-reserve cache-dir image-cap state-dir secret-file"},
          {"Fleet",
           "remote fleet-secret remote-ca remote-mode remote-memory remote-ttl remote-daily "
           "remote-compression kv-events kv-events-replay kv-events-topic kv-events-format "
           "kv-events-tenant"},
          {"Adapters",
           "lora lora-scaled lora-init-without-apply lora-dir lora-memory max-lora-rank max-loras"},
          {"Access", "api-key-file keys admin-key cors-origin allowed-host"},
          {"Chats",
           "chat-template chat-template-file chat-template-kwargs template-date reasoning "
           "reasoning-format reasoning-budget drop-lines move-lines sessions responses session-ttl "
           "prepare"},
          {"Defaults of requests, for those that say nothing else",
           "max-tokens temperature top-k top-p min-p repetition-penalty presence-penalty "
           "frequency-penalty seed generation-config pooling timeout-ms"},
          {"Queue, turns and limits",
           "max-queued max-queue-ms max-timeout-ms schedule admission target-itl-ms speculate "
           "draft-max draft-model draft-hf-repo draft-kv-memory drain-timeout-s"},
          {"Configuration, log and traces", "config log-level verbose otlp-traces-endpoint"}};
}

namespace {

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

// Returns the parts between commas of all texts.
std::vector<std::string> PartsOf(const std::vector<std::string>& lists) {
  std::vector<std::string> parts;
  for (const std::string& list : lists) {
    for (size_t begin = 0; begin <= list.size();) {
      const size_t end = std::min(list.find(',', begin), list.size());
      parts.emplace_back(Trimmed(std::string_view(list).substr(begin, end - begin), " "));
      begin = end + 1;
    }
  }
  return parts;
}

Result<RequestDefaults> ReadDefaults(const Args& args) {
  GenerateRequest given;
  KV_TRY(ReadSampling(args, given));
  const SamplingParams& sampling = given.sampling;
  RequestDefaults defaults;
  const auto take = [&args](const char* name, auto& to, auto value) {
    if (args.Has(name)) to = value;
  };
  take("max-tokens", defaults.max_tokens, given.max_tokens);
  take("temperature", defaults.sampling.temperature, sampling.temperature);
  take("seed", defaults.seed, sampling.seed);
  take("top-k", defaults.sampling.top_k, sampling.top_k);
  take("top-p", defaults.sampling.top_p, sampling.top_p);
  take("min-p", defaults.sampling.min_p, sampling.min_p);
  take("repetition-penalty", defaults.sampling.repetition_penalty, sampling.repetition_penalty);
  take("presence-penalty", defaults.presence_penalty, sampling.presence_penalty);
  take("frequency-penalty", defaults.frequency_penalty, sampling.frequency_penalty);
  return defaults;
}

Status ReadThoughts(const Args& args, RequestDefaults* defaults) {
  if (args.Has("reasoning-budget") && args.Text("reasoning-budget") != "-1") {
    KV_ASSIGN(const uint64_t most, args.Uint("reasoning-budget", 0, UINT32_MAX, 0));
    defaults->max_thought_tokens = static_cast<uint32_t>(most);
  }
  if (const auto name = args.Text("reasoning-format")) {
    const auto form = ThoughtFormOf(*name);
    if (!form) {
      return Fail(
          Code::kInvalidArgument,
          "--reasoning-format: unknown form '{}' (known: none, deepseek, deepseek-legacy, auto)",
          *name);
    }
    defaults->thoughts = *form;
  }
  return {};
}

Status ReadSessionFlags(const Args& args, ServerOptions* options) {
  KV_ASSIGN(const uint64_t sessions, args.Uint("sessions", 0, 1 << 20, options->max_sessions));
  options->max_sessions = static_cast<uint32_t>(sessions);
  KV_ASSIGN(const uint64_t responses, args.Uint("responses", 0, 1 << 20, options->max_responses));
  options->max_responses = static_cast<uint32_t>(responses);
  KV_ASSIGN(options->session_ttl_hours,
            args.Uint("session-ttl", 0, 87'600, options->session_ttl_hours));
  options->prepare = args.Has("prepare");
  return {};
}

// Absent: the flag is not given.
Result<std::optional<Pooling>> ReadPooling(const Args& args) {
  const auto name = args.Text("pooling");
  if (!name) return std::nullopt;
  if (const auto pooling = ParsePooling(*name)) return pooling;
  return Fail(Code::kInvalidArgument, "--pooling: unknown pooling '{}' (known: last, mean)", *name);
}

}  // namespace

Result<ServerOptions> ServerOptionsOf(const Args& args) {
  ServerOptions options;
  if (args.Has("host")) options.hosts = PartsOf(args.List("host"));
  KV_ASSIGN(const uint64_t port, args.Uint("port", 0, 65535, options.port));
  options.port = static_cast<uint16_t>(port);
  KV_TRY(ReadTlsFlags(args, &options));
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
  UseTracingVariables(&options);
  KV_ASSIGN(options.trace_sample, args.Float("trace-sample", {0, 1}, 1));
  if (args.Has("trace-sample") && !options.otlp_traces_endpoint) {
    return Fail(Code::kInvalidArgument, "--trace-sample: needs --otlp-traces-endpoint URL");
  }
  if (const auto path = args.Text("keys")) {
    options.keys_path = path;
    KV_ASSIGN(options.keys, ReadKeysFile(*path));
    KV_TRY(Credentials::Check(options.api_keys, options.admin_key, options.keys));
    for (size_t i = 0; i < options.keys.tenants.size(); ++i) {
      if (std::ranges::count(options.keys.keys, i, &KeyEntry::tenant) > 0) continue;
      Log(LogLevel::kWarning,
          fmt::format("--keys: {}: the tenant '{}' has no keys, so no request can use it", *path,
                      options.keys.tenants[i].name));
    }
  }
  KV_TRY(ReadTimes(args, &options));
  KV_TRY(ReadSessionFlags(args, &options));
  options.lora_dir = args.Text("lora-dir");
  options.cors_origins = args.List("cors-origin");
  options.drop_lines = args.List("drop-lines");
  options.move_lines = args.List("move-lines");
  options.has_slots = !args.Has("no-slots");
  options.has_page = !args.Has("no-page");
  options.allowed_hosts = args.List("allowed-host");
  KV_TRY(CheckOptions(options));
  KV_ASSIGN(options.chat_template, ReadTemplate(args));
  KV_ASSIGN(options.chat_template_kwargs, ReadTemplateVariables(args));
  KV_ASSIGN(options.template_now_unix_s, ReadTemplateDate(args));
  KV_ASSIGN(options.defaults, ReadDefaults(args));
  KV_TRY(ReadThoughts(args, &options.defaults));
  options.slot_save_path = args.Text("slot-save-path");
  options.defaults.verbose = args.Has("verbose");
  KV_ASSIGN(options.pooling, ReadPooling(args));
  options.version = kVersion;
  options.on_request = [](std::string_view line) { Log(LogLevel::kInfo, line); };
  return options;
}

}  // namespace kvasir::cli
