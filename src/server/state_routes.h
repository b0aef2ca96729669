// The state of the server: /props, /health, /ready and /metrics.
#pragma once

#include <functional>
#include <memory>

#include "access/key_ring.h"
#include "kvasir/session.h"
#include "observe/span_exporter.h"
#include "server/route_table.h"

namespace kvasir {

// The parts of a server that the handlers read; all must outlive the table.
struct StateSources {
  const KeyRing& keys;
  const SessionStore& sessions;
  std::shared_ptr<const SpanExporter> spans;  // null: none are made
  std::function<bool()> is_stopping;
};
// `model`: that of the calls.
void AddStateRoutes(StateSources from, const ModelView& model, RouteTable* table);

}  // namespace kvasir
