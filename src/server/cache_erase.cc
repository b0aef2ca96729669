#include "server/cache_erase.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/digest.h"
#include "base/log.h"
#include "base/start_thread.h"
#include "base/until_done.h"
#include "http/errors.h"
#include "kvasir/session_file.h"
#include "server/refusals.h"

namespace kvasir {
namespace {

using nlohmann::json;

constexpr auto kLookForOthers = std::chrono::milliseconds(500);
constexpr auto kTryAgain = std::chrono::minutes(1);

// `shows_sizes`: with several tenants, the disk's figures would tell of others' keys.
json ErasureJson(const Erasure& erasure, size_t sessions, bool has_disk, bool shows_sizes) {
  json body = {
      {"erased", true},           {"tiers", json::array({"pool"})}, {"tokens", erasure.tokens},
      {"blocks", erasure.blocks}, {"cursors", erasure.cursors},     {"sessions", sessions}};
  if (erasure.remote) {
    body["tiers"].push_back("remote");
    body["remote"] = {{"epoch", erasure.remote->epoch}, {"complete", erasure.remote->complete}};
    if (shows_sizes) body["remote"]["records"] = erasure.remote->records;
  }
  if (!has_disk) return body;
  body["tiers"].push_back("disk");
  if (shows_sizes) {
    body["disk_blocks"] = erasure.disk_blocks;
    body["disk_bytes"] = erasure.disk_bytes;
  }
  body["locked_stores"] = erasure.locked_stores;
  return body;
}

// Says for callers why kept sessions stay that this server has not opened: without their place.
std::string WhyNotErased(const Error& error) {
  Log(LogLevel::kWarning, "kept sessions cannot be erased", LogField("why", error.message));
  return error.code == Code::kUnavailable ? "another server has their file"
                                          : "the disk that has them fails";
}

// Says that no key names the tenant or group, which may be a slip of the pen; "": one does.
std::string Unnamed(const Credentials& keys, const std::optional<std::string>& tenant,
                    const std::optional<std::string>& group) {
  const bool is_default = keys.num_tenants() == 0 && tenant == "default";
  const auto is_of_group = [&](const auto& entry) {
    return entry->rules.cache_owner == OwnerOfGroup(*group);
  };
  const char* kind = nullptr;
  if (tenant && !is_default && !keys.Find(*tenant)) kind = "tenant";
  if (group && std::ranges::none_of(keys.tenants(), is_of_group)) kind = "share group";
  if (!kind) return {};
  return fmt::format("no key names the {} \"{}\"", kind, kind[0] == 't' ? *tenant : *group);
}

// Tells whether something was there to erase. The store of a fleet does not say it.
bool HasErased(const Erasure& erasure, size_t sessions) {
  return erasure.remote || erasure.blocks > 0 || erasure.tokens > 0 || erasure.cursors > 0 ||
         erasure.disk_blocks > 0 || sessions > 0;
}

// Names what an erase could not reach; "": nothing.
std::string WhatStays(const std::string& sessions, uint32_t locked_stores) {
  if (locked_stores == 0) return sessions;
  return fmt::format(
      "{}{}{} open in other servers, which must be asked too", sessions,
      sessions.empty() ? "" : "; ",
      locked_stores == 1 ? "a store that is" : fmt::format("{} stores that are", locked_stores));
}

}  // namespace

CacheEraser::CacheEraser(Engine& engine, const KeyRing& keys, const TenantStores& stores)
    : engine_(engine), keys_(keys), stores_(stores), queue_(engine) {
  if (!engine.RemoteState()) return;
  auto thread = StartThread("fleet", [this] { FollowOthers(); });
  if (thread) {
    follower_ = std::move(*thread);
  } else {
    Log(LogLevel::kWarning, "sessions that other machines erase stay here",
        LogField("why", thread.error().message));
  }
}

CacheEraser::~CacheEraser() {
  {
    const MutexLock lock(mutex_);
    is_stopping_ = true;
  }
  stops_.notify_all();
  if (follower_.joinable()) follower_.join();
}

void CacheEraser::FollowOthers() {
  using Clock = std::chrono::steady_clock;
  std::map<OwnerDigest, Clock::time_point> failed;  // when
  for (;;) {
    {
      MutexLock lock(mutex_);
      if (!is_stopping_) lock.WaitFor(stops_, kLookForOthers);
      if (is_stopping_) return;
    }
    UntilDone([&] {
      const Clock::time_point now = Clock::now();
      std::erase_if(failed, [&](const auto& one) { return now - one.second >= kTryAgain; });
      for (const ErasedElsewhere& erased : engine_.ListErasedElsewhere()) {
        if (failed.contains(erased.owner)) continue;
        if (EraseAsOthers(erased.owner)) {
          engine_.EndErasedElsewhere(erased);
        } else {
          failed.emplace(erased.owner, now);
        }
      }
    });
  }
}

// Erases what the server keeps of a tenant whose cache another machine has erased. A share group
// has no sessions. What fails is logged.
bool CacheEraser::EraseAsOthers(const OwnerDigest& owner) {
  const std::shared_ptr<const Credentials> keys = keys_.current();
  std::vector<std::string> names = {"default"};
  for (const auto& entry : keys->tenants()) names.push_back(entry->name);
  const auto named =
      std::ranges::find_if(names, [&](const auto& name) { return Sha256Of(name) == owner; });
  const auto tenant = named != names.end() ? std::optional(*named) : std::nullopt;
  std::string stays;
  if (tenant) RemoveSessions(engine_, *tenant, &stays);
  if (!stays.empty()) {
    Log(LogLevel::kWarning,
        "what another machine has erased stays here; it is tried again each minute and at start",
        LogField("why", stays));
  }
  DropPrepared(tenant);
  if (!tenant) stores_.texts.EraseAll();  // of any tenant in the group
  return stays.empty();
}

void CacheEraser::DropPrepared(const std::optional<std::string>& tenant) {
  stores_.preparer.CancelAll();
  stores_.slots.ForgetAll();
  if (tenant) stores_.texts.Erase(*tenant);
}

// Refuses a caller that may not name another owner of a cache, and what is not a name.
std::optional<HttpResponse> CacheEraser::CheckOther(const std::string& field,
                                                    const std::optional<std::string>& name,
                                                    const Caller& caller) const {
  if (!name) return std::nullopt;
  if (auto refused = CheckAdmin(*keys_.current(), fmt::format("?{}=", field), caller))
    return refused;
  if (IsTenantName(*name)) return std::nullopt;
  return ErrorResponse({.code = Code::kInvalidArgument,
                        .message = fmt::format("'{}' {}", *name, kTenantNameRule),
                        .field = field});
}

// Erases the caller's own cache, or with ?tenant=T or ?share_group=G another one's. The file of
// --keys may lack that name: what is stored stays when the file changes.
Outcome CacheEraser::Erase(const Call& call) {
  if (auto unknown = UnknownQuery(call.request.target, {"tenant", "share_group"})) {
    return ErrorResponse({.code = Code::kInvalidArgument,
                          .message = "is not a parameter of this path; give tenant or share_group, "
                                     "or neither: then the caller's own cache is erased",
                          .field = std::move(*unknown),
                          .field_is_sent = true});
  }
  auto tenant = QueryValue(call.request.target, "tenant");
  const auto group = QueryValue(call.request.target, "share_group");
  if (!tenant && !group && !call.caller.tenant) return NoTenant();
  if (tenant != call.caller.tenant) {
    if (auto refused = CheckOther("tenant", tenant, call.caller)) return std::move(*refused);
  }
  if (auto refused = CheckOther("share_group", group, call.caller)) return std::move(*refused);
  if (!tenant && !group) tenant = call.caller.tenant;
  const std::shared_ptr<const Credentials> keys = keys_.current();
  std::vector<std::string> owners;
  if (tenant) {
    owners.push_back(*tenant);
    const auto entry = keys->Find(*tenant);
    if (entry && entry->rules.cache_owner) owners.push_back(*entry->rules.cache_owner);
  }
  if (group) owners.push_back(OwnerOfGroup(*group));
  const bool has_disk = call.engine.DiskStats().has_value();
  const bool shows_sizes = keys->num_tenants() <= 1;
  const std::string unnamed = Unnamed(*keys, tenant, group);
  std::string stays;
  const size_t sessions = tenant ? RemoveSessions(call.engine, *tenant, &stays) : 0;
  DropPrepared(tenant);
  if (group) stores_.texts.EraseAll();  // of any tenant in it
  return LaterAnswer{[this, sessions, has_disk, shows_sizes, stays = std::move(stays), unnamed,
                      owners = std::move(owners)](LaterAnswer::Reply reply) {
    queue_.EraseAll(owners, [=, reply = std::move(reply)](const Erasure& erasure) {
      const std::string kept = WhatStays(stays, erasure.locked_stores);
      if (!kept.empty()) {
        Error error{Code::kUnavailable, "memory is erased, but this stays on the disk: " + kept};
        if (erasure.error) {
          error.message += "; " + erasure.error->message;
          error.cause = erasure.error->cause;
        }
        return reply(ErrorResponse(error));
      }
      if (erasure.error) return reply(ErrorResponse(*erasure.error));
      json body = ErasureJson(erasure, sessions, has_disk, shows_sizes);
      if (!unnamed.empty()) {
        const bool has_erased = HasErased(erasure, sessions);
        body["erased"] = has_erased;
        body["note"] = unnamed + (has_erased ? ": what was stored under that name before is erased"
                                             : ", and nothing was stored under that name");
      }
      reply(JsonResponse(body));
    });
  }};
}

size_t CacheEraser::RemoveSessions(Engine& engine, const std::string& tenant,
                                   std::string* why_kept) {
  SessionStore& sessions = stores_.sessions;
  const auto set_why = [&](const std::string& why) { *why_kept = "kept sessions: " + why; };
  const Result<size_t> removed = sessions.RemoveAll(tenant);
  if (!removed) set_why(removed.error().message);
  // A file that is not open has sessions too, also where this server keeps none.
  if (engine.DiskStats() && !sessions.file()) {
    const Status erased = EraseUnopened(SessionFileOptionsOf(engine), SessionOwnerOf(tenant));
    const auto no_file = sessions.no_file();
    if (!erased) set_why(no_file ? no_file->message : WhyNotErased(erased.error()));
    // It was opened meanwhile, and then all that it has goes.
    if (sessions.file()) {
      const Result<size_t> others = sessions.RemoveAll(tenant);
      why_kept->clear();
      if (!others) set_why(others.error().message);
    }
  }
  return removed.value_or(0);
}

}  // namespace kvasir
