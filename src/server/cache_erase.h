// CacheEraser: DELETE /v1/cache.
#pragma once

#include <condition_variable>
#include <optional>
#include <string>
#include <thread>

#include "access/key_ring.h"
#include "api/turn_preparer.h"
#include "base/mutex.h"
#include "kvasir/session.h"
#include "server/call.h"
#include "server/erase_queue.h"
#include "server/kept_texts.h"
#include "server/outcome.h"
#include "server/slots.h"

namespace kvasir {

// The stores of the server that have something of tenants, apart from the engine's cache.
struct TenantStores {
  SessionStore& sessions;
  KeptTexts& texts;
  Slots& slots;
  TurnPreparer& preparer;
};

// Erases the caller's own sessions, its cache and its share group's; for the operator another
// tenant's or group's. In a fleet a thread looks twice a second for what other machines have
// erased, and removes those tenants' sessions, again each minute where that fails. Thread-safe.
class CacheEraser {
 public:
  // REQUIRES: all outlive this and what it begins.
  CacheEraser(Engine& engine, const KeyRing& keys, const TenantStores& stores);
  ~CacheEraser();

  Outcome Erase(const Call& call);

 private:
  std::optional<HttpResponse> CheckOther(const std::string& field,
                                         const std::optional<std::string>& name,
                                         const Caller& caller) const;
  // Removes the tenant's sessions; `why_kept` says why some are still on the disk.
  size_t RemoveSessions(Engine& engine, const std::string& tenant, std::string* why_kept);

  void FollowOthers();
  // Returns whether nothing is left.
  bool EraseAsOthers(const OwnerDigest& owner);
  // Drops what is prepared, and what is known of slots and of a tenant's texts.
  void DropPrepared(const std::optional<std::string>& tenant);

  Engine& engine_;
  const KeyRing& keys_;
  const TenantStores stores_;
  EraseQueue queue_;
  Mutex mutex_;
  std::condition_variable stops_;
  bool is_stopping_ KV_GUARDED_BY(mutex_) = false;
  std::thread follower_;  // of a fleet's member
};

}  // namespace kvasir
