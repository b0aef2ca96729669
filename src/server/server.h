// Server: an Engine behind HTTP. What `kvasir serve` runs.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/engine.h"
#include "kvasir/status.h"

namespace kvasir {

struct ServerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8080;               // 0: the system chooses one
  std::vector<std::string> aliases;   // more names of the model; the first is the id listed first
  std::vector<std::string> api_keys;  // none: no credential is asked for
  // The operator's: for sums over all tenants. "": with several api_keys nobody reads those, else
  // whoever may call.
  std::string admin_key;
  std::string chat_template;  // source text, instead of the model's own; "": the model's
  // Who may call from a browser, and by which names (server/browser_rules.h). cors_origins:
  // origins, "localhost"; or "none", or "*" or none at all: any. allowed_hosts: names beside
  // loopback's.
  std::vector<std::string> cors_origins, allowed_hosts;
  // Both at most what the engine's request_memory_bytes allow (server/request_memory.h).
  uint64_t max_body_bytes = uint64_t{8} << 20;  // more: 413; a million token ids fit
  // At the limit the one that has waited longest for a request is closed; while all are busy, more
  // wait in the listen queue.
  uint32_t max_connections = 512;
  uint32_t read_timeout_ms = 60000;  // for a whole request head, then for its whole body
  uint32_t idle_timeout_ms = 75000;  // between requests of a kept-alive connection
  std::string summary;               // lines for stderr, before `listening on`
  std::string version = "unknown";   // sent by /props and the Server header
  // Called once with "http://HOST:PORT" when connections are accepted. Absent: RunServer writes
  // `listening on http://HOST:PORT` to stderr, if the log has its level, kInfo.
  std::function<void(std::string_view url)> on_listening;
  // Called after each request but for GET /health, /ready and /metrics, from any thread, with one
  // line: who, what, status, tokens, milliseconds. Never the text of a prompt or an answer.
  std::function<void(std::string_view line)> on_request;
};

// Serves until SIGINT or SIGTERM. The first one drains: new requests get 503, running ones finish,
// then it returns a success. A second one cancels what runs and returns kCancelled (exit 130).
// SIGHUP is as SIGTERM, unless it was ignored before (nohup): then it still is.
// kInvalidArgument: options cannot be used (server/option_check.h); kIoError: the address is taken.
// One call at a time in a process (it owns the signals while it runs).
Status RunServer(const ServerOptions& options, Engine& engine);

}  // namespace kvasir
