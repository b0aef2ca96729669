// What the server says of itself: /props, /health, /ready and /metrics.
#pragma once

#include <functional>
#include <memory>

#include "access/key_ring.h"
#include "kvasir/session.h"
#include "observe/span_exporter.h"
#include "server/route_table.h"

namespace kvasir {

// What the handlers read beside engine, options and model; all must outlive the table.
struct StateSources {
  const KeyRing& keys;
  const SessionStore& sessions;
  std::shared_ptr<const SpanExporter> spans;  // null: none are made
  std::function<bool()> is_stopping;
};
// `model`: that of the calls.
void AddStateRoutes(StateSources from, const ModelView& model, RouteTable* table);

}  // namespace kvasir
