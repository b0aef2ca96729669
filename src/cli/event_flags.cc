#include "cli/event_flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string_view>

#include "access/browser_rules.h"
#include "access/credentials.h"
#include "base/result.h"

namespace kvasir::cli {
namespace {

constexpr size_t kMostTopicBytes = 128;

// Returns whether other machines can reach an address of ZeroMQ.
bool IsReached(std::string_view address) {
  if (!address.starts_with("tcp://")) return false;
  std::string_view host = address.substr(6, address.rfind(':') - 6);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  return !IsLoopbackHost(host);
}

}  // namespace

std::vector<Flag> EventFlags() {
  return {
      {"kv-events", "ADDRESS",
       "publish which blocks the cache holds, as vLLM does, for routers: "
       "tcp://127.0.0.1:5557. Who reaches it reads the tokens of all prompts (default: off)"},
      {"kv-events-replay", "ADDRESS",
       "where routers ask for messages that they lost: tcp://127.0.0.1:5558"},
      {"kv-events-topic", "TEXT", "the messages' topic (default: empty)"},
      {"kv-events-format", "map|array",
       "how an event is written in MessagePack (default map; array: for readers of older vLLM)"},
      {"kv-events-tenant", "NAME",
       "whose blocks are published; needed where there are several tenants"}};
}

Status ReadEventFlags(const Args& args, EngineOptions* options) {
  const auto address = args.Text("kv-events");
  if (!address) {
    for (const char* flag :
         {"kv-events-replay", "kv-events-topic", "kv-events-format", "kv-events-tenant"}) {
      if (args.Has(flag)) {
        return Fail(Code::kInvalidArgument, "--{}: needs --kv-events ADDRESS", flag);
      }
    }
    return {};
  }
  KvEventsOptions events{.address = *address, .replay_address = args.Text("kv-events-replay")};
  events.topic = args.Text("kv-events-topic").value_or("");
  if (events.topic.size() > kMostTopicBytes) {
    return Fail(Code::kInvalidArgument, "--kv-events-topic: has {} bytes; at most {} are allowed",
                events.topic.size(), kMostTopicBytes);
  }
  static constexpr std::string_view kFormats[] = {"map", "array"};
  KV_ASSIGN(const std::string format, args.OneOf("kv-events-format", kFormats, "map"));
  if (format == "array") events.format = KvEventsFormat::kArray;
  options->events = std::move(events);
  return {};
}

Status ReadEventTenant(const Args& args, const ServerOptions& server, EngineOptions* options) {
  if (!options->events) return {};
  const Credentials credentials(server.api_keys, server.admin_key, server.keys);
  const auto& tenants = credentials.tenants();
  const auto name = args.Text("kv-events-tenant");
  std::vector<std::string> names;
  for (const auto& tenant : tenants) names.push_back(tenant->name);
  if (names.empty()) names.emplace_back("default");
  if (!name && names.size() > 1) {
    return Fail(Code::kInvalidArgument,
                "--kv-events: there are {} tenants, and the blocks of one are published; name it "
                "with --kv-events-tenant ({})",
                names.size(), fmt::join(names, ", "));
  }
  if (name && std::ranges::find(names, *name) == names.end()) {
    return Fail(Code::kInvalidArgument, "--kv-events-tenant: '{}' is not a tenant (known: {})",
                *name, fmt::join(names, ", "));
  }
  options->events->owner = name.value_or(names.front());
  if (const auto tenant = credentials.Find(options->events->owner)) {
    options->events->tenant = tenant->name;
    options->events->owner = tenant->rules.cache_owner.value_or(tenant->name);
  }
  return {};
}

std::string EventLines(const KvEventsOptions& options, const KvEventsStats& stats) {
  std::string lines = fmt::format("events   {}", stats.address);
  if (stats.replay_address) lines += ", replays at " + *stats.replay_address;
  lines += fmt::format(": {}{}, with the tokens of prompts in clear\n",
                       options.format == KvEventsFormat::kMap ? "maps" : "arrays",
                       options.topic.empty() ? "" : ", topic " + options.topic);
  for (const std::optional<std::string>& address :
       {std::optional(stats.address), stats.replay_address}) {
    if (!address || !IsReached(*address)) continue;
    lines += fmt::format(
        "events   warning: other machines reach {}; who does reads the tokens of all prompts. "
        "Leave it open to routers alone\n",
        *address);
  }
  return lines;
}

}  // namespace kvasir::cli
