#include "engine/remote_assembly.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/result.h"
#include "cache/kv_cache.h"
#include "format/kv_format.h"
#include "remote/owner_object.h"
#include "remote/store_client.h"

namespace kvasir {
namespace {

// Fills in when values are compressed, and how many threads may do so at once.
void ChooseCompression(const RunnerOptions& runner, RemoteCompression wanted,
                       RemoteTierOptions* remote) {
  const auto [k, v] = runner.kv_format;
  if (TraitsOf(k).bits != 16 || TraitsOf(v).bits != 16) return;
  remote->num_codecs = std::min(runner.threads, PlaneCodecs::kMost);
  const bool is_bf16 =
      k == KvFormat::kBf16 && v == KvFormat::kBf16 && runner.kv_skip_layers.empty();
  remote->compresses = wanted == RemoteCompression::kNone   ? CompressWhen::kNever
                       : wanted == RemoteCompression::kZstd ? CompressWhen::kAlways
                       : is_bf16                            ? CompressWhen::kAlways
                                                            : CompressWhen::kWhereSlow;
}

// Fills in what only an S3 store has. Its answers are late by more, and more often: 100 ms and more
// for one of a hundred is usual.
Status FillInS3(RemoteTierOptions* remote) {
  remote->stall_ns = 500'000'000;
  const auto variable = [](const char* name) -> std::string {
    const char* const value = std::getenv(name);
    return value != nullptr ? value : "";
  };
  remote->s3.credentials = {.key_id = variable("AWS_ACCESS_KEY_ID"),
                            .secret = variable("AWS_SECRET_ACCESS_KEY"),
                            .session_token = variable("AWS_SESSION_TOKEN")};
  if (!remote->s3.credentials.key_id.empty() && !remote->s3.credentials.secret.empty()) return {};
  return FailField(Code::kInvalidArgument, "remote",
                   "a store of S3 needs credentials; give them in the variables AWS_ACCESS_KEY_ID "
                   "and AWS_SECRET_ACCESS_KEY, and AWS_SESSION_TOKEN where there is one");
}

// Fills in where the store is, and how one comes to it.
Status FillInStore(const RemoteOptions& options, RemoteTierOptions* remote) {
  KV_ASSIGN(remote->address, ParseRemoteAddress(options.url));
  if (remote->address.s3) KV_TRY(FillInS3(remote));
  const auto& ca_file = options.ca_file;
  if (remote->address.has_tls) {
    KV_ASSIGN(remote->tls, TlsContext::Create(ca_file.value_or("")));
    remote->s3.ca_file = ca_file.value_or("");
  } else if (ca_file) {
    return FailField(Code::kInvalidArgument, "remote_ca",
                     "is for a store with TLS; give --remote rediss://HOST:PORT, or an endpoint of "
                     "https");
  }
  const Result<Secret> fleet = ReadFleetSecret(options.fleet_secret);
  if (!fleet) {
    return FailField(Code::kInvalidArgument, "fleet_secret", "{}", fleet.error().message);
  }
  remote->fleet = *fleet;
  if (const char* password = std::getenv("REDISCLI_AUTH")) remote->password = password;
  if (!remote->password.empty() || remote->address.user.empty()) return {};
  return FailField(Code::kInvalidArgument, "remote",
                   "names the user '{}', whose password is missing; give it in the variable "
                   "REDISCLI_AUTH",
                   remote->address.user);
}

}  // namespace

Status RemoveFromRemote(const RemoteOptions& options, std::string_view owner) {
  RemoteTierOptions remote;
  KV_TRY(FillInStore(options, &remote));
  KV_ASSIGN(const std::unique_ptr<StoreClient> client, StoreClient::Create(remote));
  KV_ASSIGN(const SocketAddresses at, Resolve(remote.address));
  const uint64_t end_ns = MonotonicNs() + 60'000'000'000;
  const auto waits = [&] { return MonotonicNs() < end_ns; };
  KV_TRY(client->Open(at, waits));
  return RemoveOwner(*client, FleetKeys(remote.fleet), KvCache::OwnerOf(owner), waits);
}

Result<std::optional<RemoteTierOptions>> RemoteOptionsFor(const Assembly& a,
                                                          const EngineOptions& options) {
  if (!options.remote) return std::nullopt;
  if (a.model.config.encoder || options.cache_mode != CacheMode::kPrefix) {
    return FailField(Code::kInvalidArgument, "remote", "{}",
                     a.model.config.encoder
                         ? fmt::format("the KV of {} depends on its source and is not shared; "
                                       "leave --remote out",
                                       a.model.name)
                         : "only a cache that requests share is shared with other machines; leave "
                           "--cache out, or give --cache prefix");
  }
  RemoteTierOptions remote{.mode = options.remote->mode,
                           .memory_bytes = options.remote->memory_bytes,
                           .ttl_hours = options.remote->ttl_hours,
                           .daily_bytes = options.remote->daily_bytes,
                           .shape = {.block_tokens = a.cache.layout.block_tokens(),
                                     .payload_bytes = a.cache.layout.block_bytes()},
                           .stall_ns = options.remote->stall_ms * 1'000'000};
  ChooseCompression(a.runner, options.remote->compression, &remote);
  KV_TRY(FillInStore(*options.remote, &remote));
  KV_TRY(RemoteTier::CheckMemory(remote));
  return remote;
}

}  // namespace kvasir
