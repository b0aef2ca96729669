// Server: serves an Engine over HTTP; `kvasir serve` runs it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "access/keys_file.h"
#include "chat/answer_parser.h"
#include "http/tls_files.h"
#include "kvasir/engine.h"
#include "kvasir/status.h"
#include "observe/trace_pair.h"

namespace kvasir {

// Defaults for fields that a request leaves out. They win over those of the model's makers
// (ModelCard::sampling).
struct RequestDefaults {
  SamplingDefaults sampling;
  std::optional<float> presence_penalty, frequency_penalty;
  std::optional<uint64_t> seed;
  std::optional<uint32_t> max_tokens;
  std::optional<uint32_t> max_thought_tokens;
  ThoughtForm thoughts = ThoughtForm::kApart;
  bool verbose = false;  // answers have `__verbose`

  SamplingParams Over(SamplingParams params) const {
    params = sampling.Over(std::move(params));
    params.presence_penalty = presence_penalty.value_or(params.presence_penalty);
    params.frequency_penalty = frequency_penalty.value_or(params.frequency_penalty);
    if (seed) params.seed = seed;
    return params;
  }
};

struct ServerOptions {
  std::vector<std::string> hosts = {"127.0.0.1"};  // listens at each
  uint16_t port = 8080;                            // of all; 0: the system chooses one
  std::shared_ptr<TlsFiles> tls;                   // null: plain HTTP
  // More names of the model; the first is the id listed first. "*" is not listed: with it, any name
  // means the model.
  std::vector<std::string> aliases;
  std::vector<std::string> tags;      // of the model, in /v1/models
  std::vector<std::string> api_keys;  // empty: no key is required
  // The operator's key, for sums over all tenants. Absent: with several api_keys no caller may
  // read the sums; otherwise every caller may.
  std::optional<std::string> admin_key;
  std::optional<std::string> keys_path;      // the file of --keys, for SIGHUP
  KeysFile keys;                             // what it has at the start
  std::optional<std::string> chat_template;  // source text; absent: the model's own
  int64_t template_now_unix_s = 0;           // the time that it is for templates; 0: the clock
  // Lines of system messages that each chat drops or moves to its end: names, or patterns.
  std::vector<std::string> drop_lines, move_lines;
  std::string chat_template_kwargs;  // a JSON object of variables for each chat; empty: none
  RequestDefaults defaults;
  // Which web pages may call, and under which host names (access/browser_rules.h). cors_origins: a
  // list of origins and "localhost"; or only "none"; or only "*", or empty: any page.
  // allowed_hosts: names beside those of loopback.
  std::vector<std::string> cors_origins, allowed_hosts;
  // Bytes a second that this machine's memory gives, for /metrics; absent: unknown.
  std::optional<double> read_limit;
  // Where spans of requests are sent (observe/span_exporter.h), and which share of the requests
  // that come without a trace. Absent: none are made.
  std::optional<std::string> otlp_traces_endpoint;
  std::string otel_service_name = "kvasir";
  std::vector<TracePair> otlp_headers, otel_attributes;  // of each POST; of the server
  double trace_sample = 1;
  // Both are limited further by the engine's request_memory_bytes (http/request_memory.h).
  uint64_t max_body_bytes = uint64_t{8} << 20;  // a larger body gets 413; a million token ids fit
  // At the limit the server closes the connection that has waited longest for a request; while all
  // are busy, new ones wait in the listen queue.
  uint32_t max_connections = 512;
  uint32_t read_timeout_ms = 60000;        // for all headers of a request, then for its whole body
  uint32_t idle_timeout_ms = 75000;        // between requests of a kept-alive connection
  std::optional<uint64_t> timeout_ms;      // of generations that give none; absent: no limit
  std::optional<uint64_t> max_timeout_ms;  // the longest; generations without a limit get this one
  uint64_t sse_ping_s = 15;                // a stream silent for so long gets a comment; 0: never
  uint64_t drain_delay_s = 0;              // requests are taken for so long after the first signal
  uint64_t drain_timeout_s = 60;           // then what runs may take so long; 0: any time
  uint32_t max_sessions = 1024;            // of all tenants; their memory: EngineOptions
  uint32_t max_responses = 1024;           // stored ones, in half of the sessions' memory
  uint64_t session_ttl_hours = 24;         // without a call; 0: sessions stay
  bool has_page = true;                    // `/` is a page for browsers
  bool has_slots = true;                   // else /slots is 501
  // A folder for files of slots (server/slots.h); absent: actions on slots are 501.
  std::optional<std::string> slot_save_path;
  // A folder; below it POST /v1/load_lora_adapter may load adapters. Absent: it is 403.
  std::optional<std::string> lora_dir;
  std::optional<Pooling> pooling;  // of embeddings; absent: as the model's files say
  bool prepare = false;  // after chat completions, next turns are prepared (api/turn_preparer.h)
  std::string summary;   // lines for stderr, before `listening on`
  std::string version = "unknown";  // shown by /props and the Server header
  // Called after each request except GET /health, /ready and /metrics, from any thread, with one
  // line: client, request, status, tokens, milliseconds. It never has text of a prompt or an
  // answer.
  std::function<void(std::string_view line)> on_request;
  // Called a second after a second signal if the server has not ended yet; it ends the process.
  std::function<void()> on_overdue;
};

// Serves until SIGINT or SIGTERM. The first one drains: /ready says 503, after drain_delay_s new
// requests get 503, running ones finish or are cancelled after drain_timeout_s, then it returns
// success. A second one cancels running requests and returns kCancelled (exit 130).
// SIGHUP reads keys_path and the files of `tls` again. Without these it works like SIGTERM, unless
// the process already ignored it (nohup): then it stays ignored. Under a service manager it never
// ends the server.
// kInvalidArgument: options cannot be used (server/option_check.h); kIoError: the address is taken.
// One call at a time in a process (it owns the signals while it runs).
Status RunServer(const ServerOptions& options, Engine& engine);

}  // namespace kvasir
