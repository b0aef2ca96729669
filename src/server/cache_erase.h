// CacheEraser: DELETE /v1/cache.
#pragma once

#include <optional>
#include <string>

#include "access/key_ring.h"
#include "api/turn_preparer.h"
#include "kvasir/session.h"
#include "server/call.h"
#include "server/erase_queue.h"
#include "server/outcome.h"
#include "server/slots.h"
#include "text/piece_store.h"

namespace kvasir {

// The stores of the server that have something of tenants, apart from the engine's cache.
struct TenantStores {
  SessionStore& sessions;
  PieceStore& pieces;
  Slots& slots;
  TurnPreparer& preparer;
};

// Erases the caller's own sessions, its cache and its share group's; for the operator another
// tenant's or group's. Thread-safe.
class CacheEraser {
 public:
  // REQUIRES: all outlive this and what it begins.
  CacheEraser(Engine& engine, const KeyRing& keys, const TenantStores& stores)
      : keys_(keys), stores_(stores), queue_(engine) {}

  Outcome Erase(const Call& call);

 private:
  std::optional<HttpResponse> CheckOther(const std::string& field,
                                         const std::optional<std::string>& name,
                                         const Caller& caller) const;
  // Removes the tenant's sessions; `why_kept` says why some are still on the disk.
  size_t RemoveSessions(Engine& engine, const std::string& tenant, std::string* why_kept);

  const KeyRing& keys_;
  const TenantStores stores_;
  EraseQueue queue_;
};

}  // namespace kvasir
